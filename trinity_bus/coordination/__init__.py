"""Coordination: which task runs where, what counts, which weights are served. Pure decisions, without any I/O.

:class:`CoordinatorMachine` is the whole of it; the other modules are its parts. ``workers.coordinator`` runs it.
"""

from trinity_bus.coordination.commands import (
    Announce,
    Answered,
    Ask,
    BatchMoved,
    Command,
    Dismiss,
    Fact,
    Observe,
    Order,
    Refusal,
    Refuse,
    Remember,
    Reply,
    Skip,
)
from trinity_bus.coordination.figures import Figures
from trinity_bus.coordination.inputs import (
    CommandArrived,
    Event,
    EventArrived,
    Input,
    Origin,
    Request,
    TaskArrived,
    Tick,
)
from trinity_bus.coordination.leadership import Leader, Leadership, LeaderState, Role
from trinity_bus.coordination.lifecycle import TRANSITIONS, IllegalTransitionError, Transition
from trinity_bus.coordination.machine import CoordinatorMachine
from trinity_bus.coordination.retention import Retention
from trinity_bus.coordination.staleness import required_version, staleness
from trinity_bus.coordination.state_codec import StateError
from trinity_bus.coordination.sync_policy import SyncPolicy

__all__ = [
    "TRANSITIONS",
    "Announce",
    "Answered",
    "Ask",
    "BatchMoved",
    "Command",
    "CommandArrived",
    "CoordinatorMachine",
    "Dismiss",
    "Event",
    "EventArrived",
    "Fact",
    "Figures",
    "IllegalTransitionError",
    "Input",
    "Leader",
    "LeaderState",
    "Leadership",
    "Observe",
    "Order",
    "Origin",
    "Refusal",
    "Refuse",
    "Remember",
    "Reply",
    "Request",
    "Retention",
    "Role",
    "Skip",
    "StateError",
    "SyncPolicy",
    "TaskArrived",
    "Tick",
    "Transition",
    "required_version",
    "staleness",
]
