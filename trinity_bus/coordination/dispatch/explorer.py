"""One explorer, as the coordinator knows it."""

from collections.abc import Mapping

from schemas.event import ExplorerState
from trinity_bus.coordination.batches.parts import Attempt, AttemptKey
from trinity_bus.coordination.pools import OWN, Kind
from trinity_bus.coordination.state.tables import Row


class Explorer(Row):
    """What is known of one explorer."""

    name: str
    incarnation: str
    state: ExplorerState
    slots: int
    version: int
    workflows: tuple[str, ...]
    """Sorted, each once."""
    gone: bool = False
    zombies: tuple[str, ...] = ()
    distrusted: int | None = None
    """A version that it believes to serve, but whose bytes did not arrive as they were sent."""
    pool: str = OWN
    """As :mod:`trinity_bus.coordination.pools` calls it."""
    fixed: bool = False
    """Whether it serves one checkpoint for good."""
    lane: int | None = None
    """The partition of ``rollouts`` that this incarnation reads, as it has told; None where it has not."""

    def __post_init__(self) -> None:
        self.find_kinds()
        self.last_seen = 0.0
        self.patience_s = 0.0
        """How long it may be silent; kept by the fleet."""
        self.assigned: Mapping[AttemptKey, Attempt] = {}
        """Attempts that it was handed and has not answered, in the order of their dispatch; kept by the fleet."""

    @property
    def free(self) -> int:
        """Attempts that it may be handed now."""
        return self.slots - len(self.assigned) if self.state == "ready" and not self.gone else 0

    @property
    def load(self) -> float:
        """The share of its slots that is taken."""
        return len(self.assigned) / self.slots

    @property
    def can_sync(self) -> bool:
        """Whether it can take part in moving weights: also one that drains, as long as it has something to finish."""
        if self.gone or self.fixed:
            return False
        return self.state in ("ready", "syncing") or (self.state == "draining" and bool(self.assigned))

    def find_kinds(self) -> None:
        """Find again what follows from its pool and its workflows."""
        self.kinds: frozenset[Kind] = frozenset((self.pool, workflow) for workflow in self.workflows)
        """What it can run."""

    def needs_no_version(self, *, trained: bool) -> bool:
        """Whether it may be handed what it serves no version for.

        Args:
            trained: Whether a version was published.
        """
        return self.fixed and (self.pool != OWN or not trained)
