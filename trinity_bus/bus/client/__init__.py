"""The client library: its connections, credentials, errors and log, and what is used of it beyond what it documents."""
