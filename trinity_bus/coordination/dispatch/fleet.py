"""The explorers: who lives, with how much room, serving which version.

An *incarnation* of an explorer is one process, known by an id of its own. The newest incarnation that was heard of is
the explorer; an earlier incarnation that still speaks is a zombie and is ignored, for good.

::

    (unknown) --heartbeat--> LIVE --silent for explorer_timeout_s--> GONE (lost) --heartbeat of the same--> LIVE
                               |                                      |
                               +--ExplorerLeft--> GONE (left)         +--heartbeat of a new incarnation--> LIVE
                               +--heartbeat of a new incarnation--> LIVE, as that one

Silence is measured from the arrival of the last heartbeat, and lasts three of them where the coordinator has set their
*pace*. A restart of the coordinator counts as a sign of life, so
that everybody gets the whole time again. An explorer that is gone is remembered for an hour, with the workflows that it
knew: tasks for them wait rather than fail while it restarts. That hour begins anew with each coordinator, so no more
than ``GONE_KEPT`` are remembered, those that went last: names may come and go faster than coordinators stay.

The pace is how often explorers send heartbeats that tell nothing new: the more there are, the less often.
Each heartbeat costs the coordinator some fifty microseconds, and one more for each few attempts that it tells of. So
all of them together are bounded, and the time between two of one explorer grows with their number, by doubling. An
explorer is told (``SetPace``) when a heartbeat of it says that it has another pace; so nothing has to be remembered of
who was told, and all are told within one pause of theirs. What changes is told at once, whatever the pace.
"""

from collections.abc import Iterable, Iterator
from enum import Enum, auto

from schemas import ExplorerHeartbeat
from schemas.event import MAX_PACE_S, MISSED, ExplorerState
from trinity_bus.coordination.batches.parts import Attempt, AttemptKey
from trinity_bus.coordination.deadlines import Deadlines
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.dispatch.placement import FreeSlots
from trinity_bus.coordination.limits import MAX_SLOTS
from trinity_bus.coordination.pools import Kind, pool_of
from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Groups, Table

OWN_PACE_S = 0.5  # explorers that are told nothing send as often by default
GONE_KEPT_S = 3600.0
GONE_KEPT = 256  # of a larger fleet that restarts at once, these know what the others knew
# Earlier incarnations remembered of each explorer, and of the trainer. One that wakes up after more than that is taken
# for a new one, and who lives for its zombie: that many can pass in an hour where a service dies as soon as it starts.
ZOMBIES_KEPT = 32


class HeartbeatOutcome(Enum):
    KNOWN = auto()
    JOINED = auto()
    ZOMBIE = auto()


class Fleet:
    """All explorers that are or were lately in the mesh. All together may send ``beats_per_s`` heartbeats."""

    def __init__(self, timeout_s: float, store: StateStore, model: str, beats_per_s: int) -> None:
        self.explorers: Table[Explorer] = Table("explorer", Explorer, store)
        self._assigned: Groups[AttemptKey, Attempt] = Groups("assigned", Attempt, store)  # running attempts by explorer
        self._timeout_s = timeout_s
        self._model = model
        self._beats_per_s = beats_per_s
        self._live: set[str] = set()
        self._gone: dict[str, None] = {}  # in the order in which they went
        self.pace_s = 0.0
        self.free_slots = FreeSlots()
        self.revision = 0  # grows whenever anything of an explorer changes but its attempts
        self._silence: Deadlines[str] = Deadlines()  # when each is silent for too long, or forgotten
        self.membership_changes = 0  # grows when explorers with other workflows or another pool come or go
        self._known: frozenset[Kind] | None = None

    def heartbeat(self, beat: ExplorerHeartbeat, now: float) -> HeartbeatOutcome:
        """Take in a heartbeat. The caller has dealt with ``assigned`` of whom it replaces; see ``is_replaced_by``."""
        explorer = self.explorers.get(beat.explorer)
        if explorer is None:
            explorer = self._join(beat, zombies=())
            outcome = HeartbeatOutcome.JOINED
        elif beat.incarnation in explorer.zombies:
            return HeartbeatOutcome.ZOMBIE
        elif beat.incarnation != explorer.incarnation:
            outcome = HeartbeatOutcome.JOINED
            explorer = self._join(beat, zombies=(*explorer.zombies, explorer.incarnation)[-ZOMBIES_KEPT:])
        else:
            outcome = self._update(explorer, beat)
        explorer.last_seen, explorer.patience_s = now, beat.silent_after_s(self._timeout_s)
        self._watch(explorer)
        return outcome

    def is_replaced_by(self, beat: ExplorerHeartbeat) -> Explorer | None:
        """Return the live explorer whose incarnation this heartbeat ends, if it does."""
        explorer = self.explorers.get(beat.explorer)
        if explorer is None or explorer.gone or beat.incarnation in (explorer.incarnation, *explorer.zombies):
            return None
        return explorer

    def find(self, name: str, incarnation: str) -> Explorer | None:
        """Return the explorer of this name, if this incarnation is the one that counts and it is not gone."""
        explorer = self.explorers.get(name)
        if explorer is None or explorer.gone or explorer.incarnation != incarnation:
            return None
        return explorer

    def lane_of(self, name: str, incarnation: str) -> int | None:
        explorer = self.explorers.get(name)
        return explorer.lane if explorer is not None and explorer.incarnation == incarnation else None

    def assign(self, explorer: Explorer, attempt: Attempt) -> None:
        self._assigned.of(explorer.name).add(attempt)
        self.free_slots.changed(explorer)

    def note_turns(self, beat: ExplorerHeartbeat) -> None:
        """Take in where the first turns lie that its running attempts have completed."""
        told = [one for one in beat.running if one.turns is not None]
        assigned = self._assigned.of(beat.explorer) if told else {}
        for one in told:
            attempt = assigned.get((one.task_id, one.attempt))
            if attempt is not None and attempt.turns is None and one.turns is not None:
                attempt.turns = one.turns.partition, one.turns.offset
                self._assigned.of(beat.explorer).add(attempt)

    def release(self, name: str, key: AttemptKey) -> None:
        del self._assigned.of(name)[key]
        self.free_slots.changed(self.explorers[name])

    def depart(self, explorer: Explorer, *, for_good: bool) -> None:
        """Note that it is gone. ``for_good``: this incarnation never comes back."""
        explorer.gone = True
        if for_good:
            explorer.zombies = (*explorer.zombies, explorer.incarnation)[-ZOMBIES_KEPT:]
        self._changed(explorer)
        self._watch(explorer)
        while len(self._gone) > GONE_KEPT:
            self._forget(self.explorers[next(iter(self._gone))])

    def set_version(self, explorer: Explorer, version: int) -> None:
        """Note that it serves ``version`` now, and is done with syncing."""
        state: ExplorerState = "ready" if explorer.state == "syncing" else explorer.state
        explorer.version, explorer.state, explorer.distrusted = version, state, None
        self._changed(explorer)

    def distrust(self, explorer: Explorer, version: int) -> None:
        """Note that it has wrong bytes for ``version``: nothing may be sampled with them, whatever it says."""
        explorer.version, explorer.distrusted = -1, version
        self._changed(explorer)

    def discard_after(self, version: int) -> None:
        """Note that what explorers serve of versions after this one is void."""
        for explorer in self.explorers.values():
            if explorer.version > version and not explorer.fixed:
                self.distrust(explorer, explorer.version)

    def discard(self, version: int) -> None:
        """Note that what explorers serve under this number is void: it is the number of other weights now."""
        for explorer in self.explorers.values():
            if explorer.version == version and not explorer.fixed:
                self.distrust(explorer, version)

    def silent(self, now: float) -> list[Explorer]:
        """Live explorers that were not heard of for too long; also forgets those that are gone for an hour."""
        silent = []
        for name in self._silence.take(now):
            explorer = self.explorers[name]
            silence = now - explorer.last_seen
            if explorer.gone and silence > GONE_KEPT_S:
                self._forget(explorer)
                continue
            self._watch(explorer)
            if not explorer.gone and silence > explorer.patience_s:
                silent.append(explorer)
        return sorted(silent, key=lambda e: e.name)

    def live(self) -> Iterator[Explorer]:
        return (e for e in self.explorers.values() if not e.gone)

    def followers(self) -> Iterator[Explorer]:
        return (e for e in self.explorers.values() if not (e.gone or e.fixed))

    def pools(self) -> frozenset[str]:
        return frozenset(e.pool for e in self.live())

    def is_fixed(self, name: str) -> bool:
        explorer = self.explorers.get(name)
        return explorer is not None and explorer.fixed

    def knows(self, kind: Kind) -> bool:
        """Whether some explorer of a pool, live or gone for less than an hour, has a workflow."""
        if self._known is None:
            self._known = frozenset[Kind]().union(*(e.kinds for e in self.explorers.values()))
        return kind in self._known

    def can_judge(self, pool: str) -> bool:
        """Whether the pool has an explorer that could have known a workflow."""
        return any(e.state != "starting" and e.pool == pool for e in self.live())

    def workflows(self, pool: str) -> list[str]:
        return sorted({kind[1] for e in self.explorers.values() for kind in e.kinds if kind[0] == pool})

    def rebuild(self, now: float) -> None:
        """Take over from a changelog: explorers count as just heard of, attempts have their whole time again."""
        for name in self._assigned.names():
            for attempt in self._assigned.of(name).values():
                attempt.place(self.explorers[name].name, self.explorers[name].incarnation, now)
        for explorer in self.explorers.values():
            explorer.assigned = self._assigned.of(explorer.name)
            explorer.last_seen = now
            self._changed(explorer)
        for explorer in self.explorers.values():
            # Nobody remembers which pace each had: that of now, or the next one, which the fleet had grown out of.
            explorer.patience_s = max(self._timeout_s, MISSED * min(2 * self.pace_s, MAX_PACE_S))
            self._watch(explorer)
        self._forget_known()

    def attempts(self) -> Iterator[Attempt]:
        return iter(self._assigned)

    def _join(self, beat: ExplorerHeartbeat, zombies: tuple[str, ...]) -> Explorer:
        explorer = Explorer(
            name=beat.explorer,
            incarnation=beat.incarnation,
            state=beat.state,
            slots=min(beat.slots, MAX_SLOTS),
            version=beat.model_version,
            workflows=_sorted(beat.workflows),
            zombies=zombies,
            pool=pool_of(beat.pool, self._model),
            fixed=beat.follows == "none",
            lane=beat.lane,
        )
        explorer.assigned = self._assigned.of(beat.explorer)
        self.explorers[beat.explorer] = explorer
        self._changed(explorer)
        self._forget_known()
        return explorer

    def _update(self, explorer: Explorer, beat: ExplorerHeartbeat) -> HeartbeatOutcome:
        rejoined = explorer.gone
        workflows = _sorted(beat.workflows)
        version = -1 if beat.model_version == explorer.distrusted else beat.model_version
        told = (beat.state, min(beat.slots, MAX_SLOTS), version, workflows)
        serves = (pool_of(beat.pool, self._model), beat.follows == "none", beat.lane)
        known = (explorer.state, explorer.slots, explorer.version, explorer.workflows)
        if not rejoined and told == known and serves == (explorer.pool, explorer.fixed, explorer.lane):
            return HeartbeatOutcome.KNOWN
        explorer.state, explorer.slots, explorer.version, explorer.workflows = told
        explorer.pool, explorer.fixed, explorer.lane = serves
        explorer.find_kinds()
        explorer.gone = False
        self._changed(explorer)
        self._forget_known()
        return HeartbeatOutcome.JOINED if rejoined else HeartbeatOutcome.KNOWN

    def _changed(self, explorer: Explorer) -> None:
        self.revision += 1
        self.free_slots.changed(explorer)
        if explorer.gone:
            self._live.discard(explorer.name)
            self._gone[explorer.name] = None
        else:
            self._live.add(explorer.name)
            self._gone.pop(explorer.name, None)
        self.pace_s = pace(len(self._live), self._beats_per_s, self.pace_s)

    def _watch(self, explorer: Explorer) -> None:
        patience_s = GONE_KEPT_S if explorer.gone else explorer.patience_s
        self._silence.set(explorer.name, explorer.last_seen + patience_s)

    def _forget(self, explorer: Explorer) -> None:
        del self.explorers[explorer.name]
        self._gone.pop(explorer.name, None)
        self._silence.forget(explorer.name)
        self._assigned.take(explorer.name)
        self.free_slots.forget(explorer.name)
        self._forget_known()

    def _forget_known(self) -> None:
        self._known = None
        self.membership_changes += 1


def _sorted(workflows: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(workflows)))


def pace(explorers: int, beats_per_s: int, before: float) -> float:
    """Return the least time between two heartbeats, in seconds; 0 where explorers may send as often as they like.

    ``before``, the pace until now, is kept until half as many explorers would still have it.
    """
    paused, needed = 0.0, explorers / beats_per_s
    if before and before / 4 < needed <= before:
        return before
    while max(paused, OWN_PACE_S) < needed and paused < MAX_PACE_S:
        paused = max(2 * paused, 2 * OWN_PACE_S)
    return paused
