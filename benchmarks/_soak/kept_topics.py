"""``batches`` and ``version-history`` as Kafka keeps them, and the real retention that has what is old forgotten.

Each is compacted: of a key the newest record is there, and of a tombstone nothing. A look at them is taken as the
coordinator's ``Keeper`` takes it, without a broker that deletes: ``needed`` says how many experiences have to be kept.
"""

from benchmarks._fleet.coordinator import Sent, SimulatedCoordinator
from schemas import BatchRecord
from schemas.topics import BATCHES, EXPERIENCES, VERSION_HISTORY
from trinity_bus.coordination import Retention
from trinity_bus.coordination.retention import RetentionSnapshot
from workers.coordinator.retention import counting, first_turns


class KeptTopics:
    def __init__(self) -> None:
        self.batches: dict[str, int] = {}
        """Key to the offset of its record."""
        self.versions: dict[str, int] = {}
        self.retention = Retention()
        self.needed = 0
        self._ends = {BATCHES.name: 0, VERSION_HISTORY.name: 0}

    @property
    def end(self) -> int:
        return self._ends[BATCHES.name]

    def written(self, sent: Sent) -> None:
        topic, key, record = sent
        if topic not in (BATCHES, VERSION_HISTORY):
            return
        offset = self._ends[topic.name]
        self._ends[topic.name] += 1
        kept = self.batches if topic is BATCHES else self.versions
        kept.pop(key, None)
        if record is not None:
            kept[key] = offset
        if topic is VERSION_HISTORY:
            self.retention.version(key, is_there=record is not None)
        else:
            self.retention.batch(key, offset, record if isinstance(record, BatchRecord) else None)

    def look(self, coordinator: SimulatedCoordinator, needs_from: int, experiences: int) -> None:
        machine = coordinator.machine
        self.retention.trained(needs_from)
        self.retention.look(
            RetentionSnapshot(
                consumed={},
                begins={},
                ends={0: experiences},
                running=frozenset(machine.ledger.running),
                counting=counting(machine),
                turns=first_turns(machine),
                aged={},
            )
        )
        self.needed = experiences - self.retention.needed.get((EXPERIENCES.name, 0), 0)
        batches, versions = self.retention.forgettable()
        coordinator.tombstones = [(BATCHES, key) for key in batches] + [(VERSION_HISTORY, key) for key in versions]
