"""Coordination: which task runs where, which result counts, which version is served. Pure decisions, without any I/O.

:class:`CoordinatorMachine` is the whole of it, and most other modules are its parts; who leads, when to commit and
what to delete is decided beside it. ``workers.coordinator`` runs them.
"""

from trinity_bus.coordination.batches.batch import TRANSITIONS, IllegalTransitionError
from trinity_bus.coordination.commit_schedule import CommitPlan, CommitSchedule
from trinity_bus.coordination.effects import Effect, Fact, Observe, RejectionReason, RejectTask, Write
from trinity_bus.coordination.inputs import (
    CommandArrived,
    ContributionArrived,
    EventArrived,
    Examined,
    Finding,
    Input,
    Origin,
    Request,
    TaskArrived,
    Tick,
    Uncountable,
)
from trinity_bus.coordination.leadership import Leader, Leadership, Role
from trinity_bus.coordination.machine import CoordinatorMachine
from trinity_bus.coordination.retention import Retention
from trinity_bus.coordination.state.codec import StateError
from trinity_bus.coordination.sync_policy import SyncPolicy, staleness

__all__ = [
    "TRANSITIONS",
    "CommandArrived",
    "CommitPlan",
    "CommitSchedule",
    "ContributionArrived",
    "CoordinatorMachine",
    "Effect",
    "EventArrived",
    "Examined",
    "Fact",
    "Finding",
    "IllegalTransitionError",
    "Input",
    "Leader",
    "Leadership",
    "Observe",
    "Origin",
    "RejectTask",
    "RejectionReason",
    "Request",
    "Retention",
    "Role",
    "StateError",
    "SyncPolicy",
    "TaskArrived",
    "Tick",
    "Uncountable",
    "Write",
    "staleness",
]
