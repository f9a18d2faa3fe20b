"""The console's index: a database for searching the log, which can be rebuilt from the log at any time.

::

    log --follow_log--> Store (SQLite, files) <--Index-- pages
     ^                                           |
     '----------------PastRecords----------------'   the tokens of what somebody looks at

:class:`Index` is what pages ask; ``terms`` says in which. One process has the ``Store``.
"""
