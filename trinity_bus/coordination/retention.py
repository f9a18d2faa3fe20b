"""What may be deleted from the log, because nobody needs it any more. Pure: owns no client, clock or task.

Needed are::

    tasks, commands, events   what the coordinator has not read, or has not committed that it has
    experiences               what a finalized batch names that is not trained for good;
                              what counts in a batch that is still open;
                              whatever an attempt may have written that still runs: its event may be on its way
    turns                     of tasks that are open: from the first that an attempt has completed
    batches                   what is not trained for good, what has not ended, and the last ``BATCHES_KEPT``
    version-history           the last ``VERSIONS_KEPT``

An attempt writes behind the end that the log had when it was dispatched. So at each look the ends of the log are noted
with the attempts that run at that moment; once all of these have ended, everything before those ends is known.

What two looks in a row have found may go when the decisions that the first was based on are committed: a coordinator
that loses its last decisions must find what it needs to take them again. What was not needed is not needed later.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from schemas import BatchLifecycleState, BatchRecord, Position
from schemas.record import MAX_COUNT
from schemas.topics import COORDINATOR_INPUTS, EXPERIENCES, TURNS
from trinity_bus.coordination.batches.parts import AttemptKey

BATCHES_KEPT = 500  # that have ended and are trained, for people to look at
VERSIONS_KEPT = 1000
MAX_NOTED = 100  # looks that are remembered while an attempt of the first still runs

type Place = tuple[str, int]  # topic without namespace, and partition
type Cuts = dict[Place, int]  # the offsets before which everything may go


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSnapshot:
    """What is known at one moment."""

    consumed: Mapping[Place, int]  # how far the inputs were read, as it is committed
    begins: Mapping[Place, int]  # the first offset that is kept, of inputs and experiences
    # Of experiences by partition, asked for *before* ``running`` and ``counting`` were looked at.
    ends: Mapping[int, int]
    running: frozenset[AttemptKey]  # all attempts that may still say something
    counting: Iterable[Position]  # where the experiences lie that count in batches that have not ended
    turns: Iterable[Position]  # where the first turns of tasks lie that are open
    aged: Mapping[Place, int]  # the offsets before which everything is older than its topic keeps it


@dataclass(slots=True)
class _Ended:
    offset: int
    # Of a train batch: the first experience that it names, by partition.
    least: dict[int, int] = field(default_factory=dict)


class Retention:
    """Follows ``batches``, ``version-history`` and the trainer, and tells what may go."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, _Ended] = OrderedDict()  # in the order of their end
        self._versions: OrderedDict[str, None] = OrderedDict()
        # The offset in ``batches`` from which on the trainer's oldest checkpoint would go on.
        self.needs_from: int | None = None
        # Ends of the log, and the attempts of that time that still run, oldest first; all but the first have some.
        self._noted: list[tuple[dict[int, int], set[AttemptKey]]] = []
        self._found: Cuts = {}
        # The first offset that is needed of each input and of experiences, as the last look has found.
        self.needed: Cuts = {}

    def anew(self) -> "Retention":
        """Return a copy that knows what the trainer has said, and is to be told of the topics again."""
        fresh = Retention()
        fresh.needs_from = self.needs_from
        return fresh

    def batch(self, batch_id: str, offset: int, record: BatchRecord | None) -> None:
        self._ended.pop(batch_id, None)
        if record is None or record.state not in (BatchLifecycleState.FINALIZED, BatchLifecycleState.ABORTED):
            return
        ended = self._ended[batch_id] = _Ended(offset)
        if record.batch_type == "train" and record.state is BatchLifecycleState.FINALIZED:
            ended.least = least(part.position for entry in record.manifest for part in entry.parts)

    def version(self, key: str, *, is_there: bool) -> None:
        self._versions.pop(key, None)
        if is_there:
            self._versions[key] = None

    def trained(self, needs_from: int) -> None:
        """Note what the trainer may still need of ``batches``. Further back than before, what is gone is gone."""
        self.needs_from = needs_from

    def look(self, look: RetentionSnapshot) -> Cuts:
        """Return what this look and the last one, whose decisions are committed, have found."""
        before, self._found = self._found, self._cuts(look)
        return {place: min(offset, before[place]) for place, offset in self._found.items() if place in before}

    def forgettable(self) -> tuple[list[str], list[str]]:
        """Keys of batches and of versions that can be forgotten: each gets a tombstone."""
        trained = [
            batch_id
            for batch_id, ended in self._ended.items()
            if not ended.least or (self.needs_from is not None and ended.offset < self.needs_from)
        ]
        versions = list(self._versions)
        return trained[: max(0, len(trained) - BATCHES_KEPT)], versions[: max(0, len(versions) - VERSIONS_KEPT)]

    def _cuts(self, look: RetentionSnapshot) -> Cuts:
        places = ((topic.name, partition) for topic in COORDINATOR_INPUTS for partition in range(topic.partitions))
        wanted = {place: look.consumed.get(place, 0) for place in places}
        self._note(look)
        noted, running = self._noted[0]
        if not running:
            untrained = [
                ended.least
                for ended in self._ended.values()
                if self.needs_from is None or ended.offset >= self.needs_from
            ]
            named = [least(look.counting), *untrained]
            for partition, end in noted.items():
                first = (each[partition] for each in named if partition in each)
                wanted[EXPERIENCES.name, partition] = min(end, *first, end)
        needed_turns = least(look.turns)
        wanted |= {(TURNS.name, p): needed_turns.get(p, MAX_COUNT) for p in range(TURNS.partitions)}
        self.needed = wanted
        cuts = {place: min(offset, look.aged.get(place, 0)) for place, offset in wanted.items()}
        return {place: offset for place, offset in cuts.items() if offset > look.begins.get(place, 0)}

    def _note(self, look: RetentionSnapshot) -> None:
        for _, running in self._noted:
            running.intersection_update(look.running)
        self._noted.append((dict(look.ends), set(look.running)))
        # Of those whose attempts have all ended, the last is the best.
        clear = [index for index, (_, running) in enumerate(self._noted) if not running]
        if clear:
            del self._noted[: clear[-1]]
        elif len(self._noted) > MAX_NOTED:
            del self._noted[-2]


def least(positions: Iterable[Position | None]) -> dict[int, int]:
    first: dict[int, int] = {}
    for position in positions:
        if position is not None:
            first[position.partition] = min(position.offset, first.get(position.partition, position.offset))
    return first


def without_lost(record: BatchRecord, begins: Mapping[int, int], ends: Mapping[int, int]) -> BatchRecord:
    """Return a finalized batch whose manifest names nothing that is gone; a task that has lost one has failed.

    ``begins`` and ``ends`` are offsets of experiences by partition; a broker that lost power may have lost the last.
    """
    manifest, lost = [], 0
    for entry in record.manifest:
        places = (part.position for part in entry.parts if part.position is not None)
        gone = next((p for p in places if not begins.get(p.partition, 0) <= p.offset < ends.get(p.partition, 0)), None)
        if gone is None:
            manifest.append(entry)
            continue
        lost += 1
        error = f"its experience at {EXPERIENCES.name}/{gone.partition}@{gone.offset} was gone before the batch ended"
        manifest.append(msgspec.structs.replace(entry, status="failed", parts=[], error=error))
    if not lost:
        return record
    return record.model_copy(update={"manifest": manifest, "failed_task_count": record.failed_task_count + lost})
