"""The console: a web application that shows what the log tells, and changes nothing unless an operator says so."""
