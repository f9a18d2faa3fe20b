"""Versions that members request from the trainer's server, and with ``memory`` from each other."""
