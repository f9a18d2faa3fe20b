"""Coordination: which task runs where, which result counts, which version is served. Pure decisions, without any I/O.

``machine.CoordinatorMachine`` is the whole of it, and most other modules are its parts; who leads, when to commit and
what to delete is decided beside it. ``workers.coordinator`` runs them.
"""
