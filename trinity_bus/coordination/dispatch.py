"""Which task goes to which explorer.

Batches take their turn in the order of :func:`batch_priority`; inside a batch, tasks go in the order in which they were
accepted, those that are tried again too. A task may go to an explorer that is ready, has a free slot, knows the
workflow and serves at least the version that the batch needs. Among those, in this order:

1. not the one where the task has just failed, if there is another;
2. the one with the newest version;
3. the one with the smallest share of its slots taken, so that all get the same share;
4. the first by name, so that the same history always gives the same decisions.
"""

from collections.abc import Iterable

from trinity_bus.coordination.batches import Batch
from trinity_bus.coordination.fleet import Explorer
from trinity_bus.coordination.tasks import OpenTask
from trinity_bus.rollout.order import BatchOrder, sort_batch_id


def batch_priority(batch: Batch) -> tuple[BatchOrder, int]:
    """Sort key of batches: train batch n, then eval batches whose id starts with the number n, then n + 1, then others.

    Train batches are known by their sequence here, whatever they are called.
    """
    name = batch.sequence if batch.batch_type == "train" else batch.batch_id
    return sort_batch_id(name), batch.number


class Room:
    """The explorers with free slots, during one pass over the tasks of one batch."""

    def __init__(self, explorers: Iterable[Explorer], min_version: int) -> None:
        self._open = [e for e in explorers if e.free > 0 and e.version >= min_version]
        self._workflows: frozenset[str] | None = None

    @property
    def workflows(self) -> frozenset[str]:
        """Those that somebody with room knows."""
        if self._workflows is None:
            self._workflows = frozenset[str]().union(*(e.workflows for e in self._open))
        return self._workflows

    def place(self, task: OpenTask) -> Explorer:
        """The explorer for this task, whose workflow is one of ``workflows``."""
        return min((e for e in self._open if task.task.workflow in e.workflows), key=lambda e: _preference(e, task))

    def taken(self, explorer: Explorer) -> None:
        """A slot of this explorer was taken."""
        if explorer.free <= 0:
            self._open.remove(explorer)
            self._workflows = None


def _preference(explorer: Explorer, task: OpenTask) -> tuple[bool, int, float, str]:
    load = len(explorer.assigned) / explorer.slots
    return explorer.name == task.failed_on, -explorer.version, load, explorer.name
