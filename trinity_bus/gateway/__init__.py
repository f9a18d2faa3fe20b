"""The gateway's logic: which explorer answers an HTTP request, and how its response becomes an experience."""
