"""How much there is to do, of batches that can go on and of each producer, and what is kept until they end. Pure."""

from dataclasses import dataclass, field

from trinity_bus.coordination.limits import MAX_KEPT_RESULTS


@dataclass(slots=True)
class Amount:
    count: int = 0
    size: int = 0  # bytes

    def add(self, count: int, size: int) -> None:
        self.count += count
        self.size += size

    def remove(self, count: int, size: int) -> None:
        self.count -= count
        self.size -= size


@dataclass(slots=True)
class Backlog:
    tasks: Amount = field(default_factory=Amount)  # open ones, of batches that need no more of them to go on
    results: Amount = field(default_factory=Amount)  # of batches that are full

    def has_room(self, max_tasks: int, max_bytes: int) -> bool:
        tasks, results = self.tasks, self.results
        return (
            tasks.count < max_tasks
            and tasks.size < max_bytes
            and results.count < MAX_KEPT_RESULTS
            and results.size < max_bytes
        )


class Usage:
    """Open tasks of each producer, by count and by bytes; those that have none are not kept."""

    def __init__(self) -> None:
        self._uses: dict[str, Amount] = {}

    def __len__(self) -> int:
        return len(self._uses)

    def of(self, producer: str) -> Amount:
        return self._uses.get(producer) or Amount()

    def add(self, producer: str, size: int) -> None:
        self._uses.setdefault(producer, Amount()).add(1, size)

    def remove(self, producer: str, size: int) -> None:
        self._uses[producer].remove(1, size)
        if not self._uses[producer].count:
            del self._uses[producer]
