"""The client library: connections, credentials, errors and log, and all that it does not document and is used here."""
