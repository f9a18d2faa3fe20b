"""Which part of a task goes to which explorer.

A free slot is for the producer that has the fewest attempts running (``batches.accounts``), its batches take their turn
(``batches.dispatch_queue``), and parts go in the order of ``batches.batch``. A part may go to an explorer that is
ready, has a free slot, is of the task's pool, knows the workflow and serves at least the version that the batch needs,
if its pool has versions (``pools``). Among those, in this order:

1. not the one where the part has just failed, if there is another;
2. the one with the newest version;
3. one that has another part of the same task, because it may have the prompt in its prefix cache;
4. the one with the least to do for each of its slots, by how long responses are expected to be: so all have the same
   share of the work, or of the attempts where nothing is known;
5. the first by name, so that the same history always gives the same decisions.

Nothing here scans all explorers. Explorers with free slots and equal pool, workflows and version form a *cohort*, and
each cohort has a heap with the smallest load at its top.
"""

import heapq
from collections.abc import Collection, Container, Iterable

from trinity_bus.coordination.batches.parts import Part
from trinity_bus.coordination.batches.tasks import OpenTask
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.pools import Kind

type _Alike = tuple[frozenset[Kind], str, int, bool]  # kinds, pool, version, and whether they are fixed

_SPARE = 4  # out-of-date entries of a heap, besides one for each member, before it is built again


class FreeSlots:
    """The explorers with free slots. Whoever changes one says so."""

    def __init__(self) -> None:
        self._cohorts: dict[_Alike, _AlikeExplorers] = {}
        self._cohort_of: dict[str, _AlikeExplorers] = {}

    def __bool__(self) -> bool:
        return bool(self._cohort_of)

    def changed(self, explorer: Explorer) -> None:
        alike = explorer.kinds, explorer.pool, explorer.version, explorer.fixed
        cohort = self._cohort_of.get(explorer.name)
        if cohort is None or cohort.alike != alike or explorer.free <= 0:
            self.forget(explorer.name)
            if explorer.free <= 0:
                return
            cohort = self._cohorts.get(alike)
            if cohort is None:
                cohort = self._cohorts[alike] = _AlikeExplorers(alike)
            self._cohort_of[explorer.name] = cohort
        cohort.add(explorer)

    def forget(self, name: str) -> None:
        cohort = self._cohort_of.pop(name, None)
        if cohort is not None:
            del cohort.members[name]
            if not cohort.members:
                del self._cohorts[cohort.alike]

    def of(self, min_version: int, *, trained: bool) -> "Placement":
        return Placement(self._cohorts.values(), min_version, trained=trained)


class Placement:
    """The explorers with free slots that serve a version, or need not, while room only shrinks."""

    def __init__(self, cohorts: Iterable["_AlikeExplorers"], min_version: int, *, trained: bool) -> None:
        self._min_version = min_version
        self._trained = trained
        self._cohorts = sorted(
            (c for c in cohorts if c.version >= min_version or c.any.needs_no_version(trained=trained)),
            key=lambda c: -c.version,
        )
        self._kinds: frozenset[Kind] | None = None

    @property
    def kinds(self) -> frozenset[Kind]:
        """Those that somebody with room can run."""
        if self._kinds is None or not all(cohort.members for cohort in self._cohorts):
            self._cohorts = [cohort for cohort in self._cohorts if cohort.members]
            self._kinds = frozenset[Kind]().union(*(cohort.kinds for cohort in self._cohorts))
        return self._kinds

    def version_for(self, explorer: Explorer) -> int:
        """Return the version that this explorer, of those here, must have before it begins."""
        return 0 if explorer.needs_no_version(trained=self._trained) else self._min_version

    def place(self, task: OpenTask, part: Part) -> Explorer:
        explorer = self.find(task, part)
        if explorer is None:
            raise ValueError(f"nobody with room can run {task.kind}")
        return explorer

    def find(self, task: OpenTask, part: Part, *, beside: str | None = None) -> Explorer | None:
        """Return the explorer for this part, but not ``beside``; None where nobody with room can run it."""
        homes: Collection[str] = task.homes if len(task.parts) > 1 else ()
        failed_on = part.failed_on
        best: Explorer | None = None
        for cohort in self._cohorts:
            if best is not None and best.name != failed_on and best.version > cohort.version:
                break
            if task.kind in cohort.kinds:
                found = cohort.best(failed_on, beside, homes)
                if found is not None and (
                    best is None or _preference(found, failed_on, homes) < _preference(best, failed_on, homes)
                ):
                    best = found
        return best


class _AlikeExplorers:
    def __init__(self, alike: _Alike) -> None:
        self.alike = alike
        self.kinds, _, self.version, _ = alike
        self.members: dict[str, Explorer] = {}
        # Load and name: of each member as it is, and of some as they were.
        self._heap: list[tuple[float, str]] = []

    @property
    def any(self) -> Explorer:
        # Any explorer of the cohort, to read what is the same of all.
        return next(iter(self.members.values()))

    def add(self, explorer: Explorer) -> None:
        self.members[explorer.name] = explorer
        heapq.heappush(self._heap, (explorer.load, explorer.name))
        if len(self._heap) > 2 * len(self.members) + _SPARE:
            self._heap = [(e.load, e.name) for e in self.members.values()]
            heapq.heapify(self._heap)

    def best(self, failed_on: str | None, beside: str | None, homes: Collection[str]) -> Explorer | None:
        at_home = [name for name in homes if name in self.members and name not in (failed_on, beside)]
        if at_home:
            return min((self.members[name] for name in at_home), key=lambda e: (e.load, e.name))
        found = self._least_taken((failed_on, beside))
        return self.members.get(failed_on or "") if found is None and failed_on != beside else found

    def _least_taken(self, but: Container[str | None]) -> Explorer | None:
        passed, found = [], None
        while self._heap:
            load, name = self._heap[0]
            member = self.members.get(name)
            if member is not None and member.load == load:
                if name not in but:
                    found = member
                    break
                passed.append((load, name))
            heapq.heappop(self._heap)
        for entry in dict.fromkeys(passed):
            heapq.heappush(self._heap, entry)
        return found


def _preference(
    explorer: Explorer, failed_on: str | None, homes: Collection[str]
) -> tuple[bool, int, bool, float, str]:
    return explorer.name == failed_on, -explorer.version, explorer.name not in homes, explorer.load, explorer.name
