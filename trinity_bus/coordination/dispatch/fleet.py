"""The explorers: who lives, with how much room, serving which version.

An *incarnation* of an explorer is one process. The newest incarnation that was heard of is the explorer; an earlier one
that still speaks is a zombie and is ignored, for good.

::

    (unknown) --heartbeat--> LIVE --silent for explorer_timeout_s--> GONE (lost) --heartbeat of the same--> LIVE
                               |                                      |
                               +--ExplorerLeft--> GONE (left)         +--heartbeat of a new incarnation--> LIVE
                               +--heartbeat of a new incarnation--> LIVE, as that one

A restart of the coordinator counts as a sign of life of everybody. An explorer that is gone is remembered for an hour,
``GONE_KEPT`` of them, with the workflows that it knew: tasks for them wait rather than fail while it restarts.

The *pace* is how often explorers send heartbeats that tell nothing new. The time between two of one explorer grows with
the number of explorers, by doubling; silence lasts three of them. An explorer is told (``SetPace``) when a heartbeat of
it says that it has another pace. What changes is told at once, whatever the pace.
"""

import math
from collections.abc import Iterator
from typing import Any

from schemas import ExplorerHeartbeat
from schemas.event import MAX_PACE_S, MISSED, ExplorerState
from trinity_bus.coordination.batches.parts import Attempt, AttemptKey
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.dispatch.placement import FreeSlots
from trinity_bus.coordination.limits import MAX_SLOTS
from trinity_bus.coordination.pools import OWN, Kind, pool_of
from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Groups, Table

OWN_PACE_S = 0.5  # explorers that are told nothing send as often by default
GONE_KEPT_S = 3600.0
GONE_KEPT = 256  # of a larger fleet that restarts at once, these know what the others knew
# Earlier incarnations remembered of each explorer, and of the trainer. One that wakes up after more than that is taken
# for a new one, and who lives for its zombie: that many can pass in an hour where a service dies as soon as it starts.
ZOMBIES_KEPT = 32


class Fleet:
    def __init__(self, timeout_s: float, store: StateStore, model: str, beats_per_s: int) -> None:
        self.explorers: Table[Explorer] = Table("explorer", Explorer, store)
        self._assigned: Groups[AttemptKey, Attempt] = Groups("assigned", Attempt, store)  # running attempts by explorer
        self._timeout_s = timeout_s
        self._model = model
        self._beats_per_s = beats_per_s
        self._gone: dict[str, None] = {}  # in the order in which they went
        self.pace_s = 0.0
        self.free_slots = FreeSlots()
        self.revision = 0  # grows whenever anything of an explorer changes but its attempts
        self.membership_changes = 0  # grows when explorers with other workflows or another pool come or go
        self._known: frozenset[Kind] | None = None

    def is_zombie(self, beat: ExplorerHeartbeat) -> bool:
        explorer = self.explorers.get(beat.explorer)
        return explorer is not None and beat.incarnation in explorer.zombies

    def heartbeat(self, beat: ExplorerHeartbeat, now: float) -> bool:
        """Take in a heartbeat of no zombie. Return whether the explorer has joined by it.

        The caller has dealt with ``assigned`` of whom it replaces; see ``is_replaced_by``.
        """
        explorer, told = self.explorers.get(beat.explorer), self._told(beat)
        if explorer is None or explorer.incarnation != beat.incarnation:
            joined, zombies = True, () if explorer is None else (*explorer.zombies, explorer.incarnation)
            explorer = Explorer(
                name=beat.explorer, incarnation=beat.incarnation, zombies=zombies[-ZOMBIES_KEPT:], **told
            )
            explorer.assigned = self._assigned.of(beat.explorer)
            self.explorers[beat.explorer] = explorer
        else:
            joined = explorer.gone
            if beat.model_version == explorer.distrusted:
                told["version"] = -1
        if joined or any(getattr(explorer, name) != value for name, value in told.items()):
            for name, value in told.items():
                setattr(explorer, name, value)
            explorer.find_kinds()
            explorer.gone = False
            self._changed(explorer)
            self._forget_known()
        explorer.last_seen, explorer.patience_s = now, beat.silent_after_s(self._timeout_s)
        return joined

    def is_replaced_by(self, beat: ExplorerHeartbeat) -> Explorer | None:
        # The live explorer whose incarnation this heartbeat ends.
        explorer = self.explorers.get(beat.explorer)
        if explorer is None or explorer.gone or beat.incarnation in (explorer.incarnation, *explorer.zombies):
            return None
        return explorer

    def find(self, name: str, incarnation: str) -> Explorer | None:
        explorer = self.explorers.get(name)
        if explorer is None or explorer.gone or explorer.incarnation != incarnation:
            return None
        return explorer

    def lane_of(self, name: str, incarnation: str) -> int | None:
        explorer = self.explorers.get(name)
        return explorer.lane if explorer is not None and explorer.incarnation == incarnation else None

    def assign(self, explorer: Explorer, attempt: Attempt) -> None:
        self._assigned.of(explorer.name).add(attempt)
        explorer.work += attempt.weight
        self.free_slots.changed(explorer)

    def note_turns(self, beat: ExplorerHeartbeat) -> None:
        assigned = self._assigned.of(beat.explorer)
        for running in beat.running:
            attempt = None if running.turns is None else assigned.get((running.task_id, running.attempt))
            if attempt is not None and attempt.turns is None:
                attempt.turns = running.turns
                assigned.add(attempt)

    def release(self, name: str, key: AttemptKey) -> None:
        assigned, explorer = self._assigned.of(name), self.explorers[name]
        explorer.work -= assigned[key].weight
        del assigned[key]
        self.free_slots.changed(explorer)

    def depart(self, explorer: Explorer, *, for_good: bool) -> None:
        # ``for_good``: this incarnation never comes back.
        explorer.gone = True
        if for_good:
            explorer.zombies = (*explorer.zombies, explorer.incarnation)[-ZOMBIES_KEPT:]
        self._changed(explorer)
        while len(self._gone) > GONE_KEPT:
            self._forget(self.explorers[next(iter(self._gone))])

    def set_version(self, explorer: Explorer, version: int) -> None:
        state: ExplorerState = "ready" if explorer.state == "syncing" else explorer.state
        explorer.version, explorer.state, explorer.distrusted = version, state, None
        self._changed(explorer)

    def distrust(self, explorer: Explorer, version: int) -> None:
        explorer.version, explorer.distrusted = -1, version
        self._changed(explorer)

    def discard(self, first: int, last: float = math.inf) -> None:
        """Note that what explorers serve under these numbers is void: it was discarded, or has other weights now."""
        for explorer in self.explorers.values():
            if first <= explorer.version <= last and not explorer.fixed:
                self.distrust(explorer, explorer.version)

    def silent(self, now: float) -> list[Explorer]:
        """Live explorers that were not heard of for too long; also forgets those that are gone for an hour."""
        silent = []
        for explorer in list(self.explorers.values()):
            silence = now - explorer.last_seen
            if explorer.gone and silence > GONE_KEPT_S:
                self._forget(explorer)
            elif not explorer.gone and silence > explorer.patience_s:
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

    def serves_another_model(self, name: str) -> bool:
        explorer = self.explorers.get(name)
        return explorer is not None and explorer.fixed and explorer.pool != OWN

    def knows(self, kind: Kind) -> bool:
        if self._known is None:
            self._known = frozenset[Kind]().union(*(e.kinds for e in self.explorers.values()))
        return kind in self._known

    def can_judge(self, pool: str) -> bool:
        return any(e.state != "starting" and e.pool == pool for e in self.live())

    def workflows(self, pool: str) -> list[str]:
        return sorted({kind[1] for e in self.explorers.values() for kind in e.kinds if kind[0] == pool})

    def resumed(self, now: float) -> Iterator[Attempt]:
        """Return the attempts of a changelog, which have their whole time again."""
        for name in self._assigned.names():
            for attempt in self._assigned.of(name).values():
                attempt.place(name, self.explorers[name].incarnation, now)
                yield attempt

    def rebuild(self, now: float) -> None:
        """Take over from a changelog, when tasks know their attempts: explorers count as just heard of."""
        self._gone = {name: None for name, explorer in self.explorers.items() if explorer.gone}
        for explorer in self.explorers.values():
            explorer.assigned = self._assigned.of(explorer.name)
            explorer.work = sum(attempt.weight for attempt in explorer.assigned.values())
            explorer.last_seen = now
            self._changed(explorer)
        for explorer in self.explorers.values():
            # Nobody remembers which pace each had: that of now, or the next one, which the fleet had grown out of.
            explorer.patience_s = max(self._timeout_s, MISSED * min(2 * self.pace_s, MAX_PACE_S))
        self._forget_known()

    def _told(self, beat: ExplorerHeartbeat) -> dict[str, Any]:
        # What a heartbeat says, by the fields of ``Explorer``.
        return {
            "state": beat.state,
            "slots": min(beat.slots, MAX_SLOTS),
            "version": beat.model_version,
            "workflows": tuple(sorted(set(beat.workflows))),
            "pool": pool_of(beat.pool, self._model),
            "fixed": beat.follows == "none",
            "lane": beat.lane,
        }

    def _changed(self, explorer: Explorer) -> None:
        self.revision += 1
        self.free_slots.changed(explorer)
        if explorer.gone:
            self._gone[explorer.name] = None
        else:
            self._gone.pop(explorer.name, None)
        self.pace_s = pace(len(self.explorers) - len(self._gone), self._beats_per_s, self.pace_s)

    def _forget(self, explorer: Explorer) -> None:
        del self.explorers[explorer.name]
        self._gone.pop(explorer.name, None)
        self._assigned.take(explorer.name)
        self.free_slots.forget(explorer.name)
        self._forget_known()

    def _forget_known(self) -> None:
        self._known = None
        self.membership_changes += 1


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
