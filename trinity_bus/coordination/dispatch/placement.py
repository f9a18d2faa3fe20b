"""Which part of a task goes to which explorer.

A slot that is free is for the producer that has the fewest attempts running of those that have something for it, see
:mod:`shares <trinity_bus.coordination.batches.shares>`: however much one of them has queued, the others get their part
of the slots. Its batches take their turn in the order of its :mod:`queue
<trinity_bus.coordination.dispatch.dispatch_queue>`; inside a batch, parts go in the order of their tasks and runs,
those that are tried again too. A part may go to an explorer that is ready, has a free slot, is of the task's pool,
knows the workflow and serves at least the version that the batch needs, if its pool has versions (see
:mod:`trinity_bus.coordination.pools`). Among those, in this order:

1. not the one where the part has just failed, if there is another;
2. the one with the newest version;
3. one that has another part of the same task, because it may have the prompt in its prefix cache;
4. the one with the smallest share of its slots taken, so that all get the same share;
5. the first by name, so that the same history always gives the same decisions.
"""

from collections.abc import Collection, Iterable

from trinity_bus.coordination.batches.parts import Part
from trinity_bus.coordination.batches.tasks import OpenTask
from trinity_bus.coordination.dispatch.fleet import Explorer
from trinity_bus.coordination.pools import Kind


class Rooms:
    """The explorers with free slots during one pass, for each version that batches need.

    Args:
        explorers: Each with a free slot.
        trained: Whether a version was published.
    """

    def __init__(self, explorers: Iterable[Explorer], *, trained: bool) -> None:
        self._explorers = list(explorers)
        self._trained = trained
        self._rooms: dict[int, Placement] = {}
        self._left = len(self._explorers)

    def __bool__(self) -> bool:
        """Whether there is any room left."""
        return self._left > 0

    def of(self, min_version: int) -> "Placement":
        """Return the room for what needs this version."""
        placement = self._rooms.get(min_version)
        if placement is None:
            placement = self._rooms[min_version] = Placement(self._explorers, min_version, trained=self._trained)
        return placement

    def taken(self, explorer: Explorer) -> None:
        """Note that a slot of this explorer was taken."""
        if explorer.free <= 0:
            self._left -= 1
            for placement in self._rooms.values():
                placement.close(explorer)


class Placement:
    """The explorers with free slots that serve a version, or need not."""

    def __init__(self, explorers: Iterable[Explorer], min_version: int, *, trained: bool) -> None:
        self._min_version = min_version
        self._trained = trained
        self._open = [e for e in explorers if e.free > 0 and self._serves(e)]
        self._kinds: frozenset[Kind] | None = None

    @property
    def kinds(self) -> frozenset[Kind]:
        """Those that somebody with room can run."""
        if self._kinds is None:
            self._kinds = frozenset[Kind]().union(*(e.kinds for e in self._open))
        return self._kinds

    def version_for(self, explorer: Explorer) -> int:
        """Return the version that this explorer, of those here, is to have before it begins."""
        return 0 if explorer.needs_no_version(trained=self._trained) else self._min_version

    def place(self, task: OpenTask, part: Part) -> Explorer:
        """Return the explorer for this part, of a task whose kind is one of ``kinds``."""
        homes: Collection[str] = task.homes if len(task.parts) > 1 else ()
        kind, failed_on = task.kind, part.failed_on
        able = (e for e in self._open if kind in e.kinds)
        return min(able, key=lambda e: _preference(e, failed_on, homes))

    def close(self, explorer: Explorer) -> None:
        """Note that this explorer has no slot left."""
        if self._serves(explorer):
            # Not ``remove``: it would compare the explorers before this one field by field.
            self._open = [other for other in self._open if other is not explorer]
            self._kinds = None

    def _serves(self, explorer: Explorer) -> bool:
        return explorer.version >= self._min_version or explorer.needs_no_version(trained=self._trained)


def _preference(
    explorer: Explorer, failed_on: str | None, homes: Collection[str]
) -> tuple[bool, int, bool, float, str]:
    load = len(explorer.assigned) / explorer.slots
    return explorer.name == failed_on, -explorer.version, explorer.name not in homes, load, explorer.name
