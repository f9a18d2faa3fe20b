"""Requests: clients' commands and the coordinator's replies."""
