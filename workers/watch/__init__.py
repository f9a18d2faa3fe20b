"""The state of a mesh as text: ``status`` and similar commands, and the demo's live view."""
