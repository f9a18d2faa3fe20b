"""Health: whether this process should be started anew (``/livez``), and whether it can do its work now (``/readyz``).

A service runs inside ``process.serving`` and calls ``process.mark_ready`` once it works. Checks of containers
run ``probe.sh``, which needs no Python.
"""
