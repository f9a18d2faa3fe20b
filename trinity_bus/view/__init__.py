"""The state of a mesh, as any client can read it from the topics.

:class:`MeshState` is folded from records and owns nothing; :class:`MeshFollower` reads topics into one. The clients,
``trinity-bus`` and the demo all look through these. Importing this package imports no machine-learning framework.
"""

from trinity_bus.view.mesh_follower import HeldBack, MeshFollower, coordinator_lag, follow
from trinity_bus.view.parts import (
    BatchView,
    ExplorerView,
    Limits,
    StepView,
    SyncView,
    VersionRow,
    runner_values,
    state_table,
    unserved_line,
)
from trinity_bus.view.state import MeshState

__all__ = [
    "BatchView",
    "ExplorerView",
    "HeldBack",
    "Limits",
    "MeshFollower",
    "MeshState",
    "StepView",
    "SyncView",
    "VersionRow",
    "coordinator_lag",
    "follow",
    "runner_values",
    "state_table",
    "unserved_line",
]
