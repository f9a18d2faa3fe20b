"""Clients: what the coordinator service does, as methods of local objects, from any process.

:class:`RolloutCoordinator` is for batches that are trained on or evaluated as a whole; :class:`Scheduler` for tasks
whose results the caller wants one by one. Importing this package imports no machine-learning framework.
"""

from trinity_bus.client.channel import CommandChannel
from trinity_bus.client.coordinator import RolloutCoordinator
from trinity_bus.client.errors import NoCoordinatorError
from trinity_bus.client.fleet import FleetView, runner_values
from trinity_bus.client.results import CompletedTaskResult, Status
from trinity_bus.client.scheduler import Scheduler
from trinity_bus.client.tasks import send_tasks

__all__ = [
    "CommandChannel",
    "CompletedTaskResult",
    "FleetView",
    "NoCoordinatorError",
    "RolloutCoordinator",
    "Scheduler",
    "Status",
    "runner_values",
    "send_tasks",
]
