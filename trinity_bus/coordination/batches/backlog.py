"""How much there is to do of batches that can go on, and what is kept until they end. Pure."""

from dataclasses import dataclass, field

from trinity_bus.coordination.limits import MAX_KEPT_RESULTS


@dataclass(slots=True)
class Amount:
    """Some things, and their bytes."""

    count: int = 0
    size: int = 0

    def add(self, count: int, size: int) -> None:
        """Note that there are more."""
        self.count += count
        self.size += size

    def remove(self, count: int, size: int) -> None:
        """Note that there are fewer."""
        self.count -= count
        self.size -= size


@dataclass(slots=True)
class Backlog:
    """Open tasks by count and by bytes; both bound what is read."""

    tasks: Amount = field(default_factory=Amount)
    """Open ones, of batches that need no more of them to go on."""
    results: Amount = field(default_factory=Amount)
    """Of batches that are full."""

    def has_room(self, max_tasks: int, max_bytes: int) -> bool:
        """Whether there may be more of each."""
        tasks, results = self.tasks, self.results
        return (
            tasks.count < max_tasks
            and tasks.size < max_bytes
            and results.count < MAX_KEPT_RESULTS
            and results.size < max_bytes
        )
