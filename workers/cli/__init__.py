"""The command line, ``trinity-bus``: one module for each command or group of commands."""
