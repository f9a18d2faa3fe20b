"""Health: whether this process should be restarted (``/livez``), and whether it can work now (``/readyz``).

A service runs inside ``process.serving`` and calls ``process.mark_ready`` once it works. Checks of containers
run ``probe.sh``, which needs no Python.
"""
