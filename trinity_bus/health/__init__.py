"""Health: whether this process should be started anew (``/livez``), and whether it can do its work now (``/readyz``).

A service runs inside ``process.serving`` and calls ``process.mark_ready`` once it works. This package itself imports
nothing, so that ``probe``, which container checks run every few seconds, is done in a moment.
"""
