"""The command line, ``trinity-bus``: one module for the commands of a noun."""
