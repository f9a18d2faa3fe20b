"""Clients: what the coordinator service does, as methods of local objects, from any process.

:class:`RolloutCoordinator` is for batches that are trained on or evaluated as a whole; :class:`Scheduler` for tasks
whose results the caller wants one by one; :class:`Synchronizer` for versions of the model. Importing this package
imports no machine-learning framework.
"""

from trinity_bus.client.channel import CommandChannel
from trinity_bus.client.coordinator import RolloutCoordinator
from trinity_bus.client.errors import NoCoordinatorError
from trinity_bus.client.ids import producer_name, sent_by
from trinity_bus.client.results import CompletedTaskResult, Status
from trinity_bus.client.scheduler import Scheduler
from trinity_bus.client.synchronizer import Synchronizer
from trinity_bus.client.tasks import send_tasks
from trinity_bus.view import VersionRow

__all__ = [
    "CommandChannel",
    "CompletedTaskResult",
    "NoCoordinatorError",
    "RolloutCoordinator",
    "Scheduler",
    "Status",
    "Synchronizer",
    "VersionRow",
    "producer_name",
    "send_tasks",
    "sent_by",
]
