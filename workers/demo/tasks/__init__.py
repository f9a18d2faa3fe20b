"""The demo's tasks, as JSON lines. Written by ``tools/make_demo_tasks.py``."""
