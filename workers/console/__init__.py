"""The console: a web application that shows the log, and changes something only on an operator's request."""
