"""A whole mesh in one thread, around the coordinator's real state machine: everything else here is SIMULATED.

``World`` is the mesh and what may happen to it, ``Invariants`` the observer that knows what must hold.
"""

from tests.support.simulation.histories import draw_settings, random_history
from tests.support.simulation.invariant import Invariant, InvariantViolatedError
from tests.support.simulation.invariants import Invariants
from tests.support.simulation.witness import Decision, Honest
from tests.support.simulation.world import World

__all__ = [
    "Decision",
    "Honest",
    "Invariant",
    "InvariantViolatedError",
    "Invariants",
    "World",
    "draw_settings",
    "random_history",
]
