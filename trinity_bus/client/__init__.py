"""Clients: the coordinator's commands as methods of local objects, from any process.

:class:`Client` is the plain way. The others have the names and methods of the reference: :class:`RolloutCoordinator` is
for batches that are trained on or evaluated as a whole; :class:`Scheduler` for tasks
whose results the caller wants one by one; :class:`Synchronizer` for versions of the model. Importing this package
imports no machine-learning framework.
"""

from trinity_bus.client.channel import CommandChannel
from trinity_bus.client.client import BatchHandle, Client
from trinity_bus.client.coordinator import RolloutCoordinator
from trinity_bus.client.experiences import deserialize_many
from trinity_bus.client.results import CompletedTaskResult, Status
from trinity_bus.client.scheduler import Scheduler
from trinity_bus.client.synchronizer import Synchronizer
from trinity_bus.client.tasks import producer_name, send_all, send_tasks, sent_by
from trinity_bus.view import VersionRow

__all__ = [
    "BatchHandle",
    "Client",
    "CommandChannel",
    "CompletedTaskResult",
    "RolloutCoordinator",
    "Scheduler",
    "Status",
    "Synchronizer",
    "VersionRow",
    "deserialize_many",
    "producer_name",
    "send_all",
    "send_tasks",
    "sent_by",
]
