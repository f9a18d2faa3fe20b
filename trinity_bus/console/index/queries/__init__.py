"""SQL queries, as functions of an open connection."""
