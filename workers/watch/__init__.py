"""The state of a mesh as tables and lines for people: `status` and its like, and the demo's live view."""
