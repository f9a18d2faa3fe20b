"""A whole mesh in one thread, around the coordinator's real state machine: everything else here is SIMULATED.

``World`` is the mesh and what may happen to it, ``Laws`` the observer that knows what must hold.
"""

from tests.support.simulation.histories import draw_settings, random_history
from tests.support.simulation.laws import Law, LawBrokenError, Laws
from tests.support.simulation.world import Decided, Honest, World

__all__ = ["Decided", "Honest", "Law", "LawBrokenError", "Laws", "World", "draw_settings", "random_history"]
