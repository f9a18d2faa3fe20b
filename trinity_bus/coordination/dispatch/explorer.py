"""One explorer, as the coordinator knows it."""

from collections.abc import Mapping

from schemas.event import ExplorerState
from trinity_bus.coordination.batches.parts import Attempt, AttemptKey
from trinity_bus.coordination.pools import OWN, Kind
from trinity_bus.coordination.state.tables import Row


class Explorer(Row):
    name: str
    incarnation: str
    state: ExplorerState
    slots: int
    version: int
    workflows: tuple[str, ...]  # sorted, each once
    gone: bool = False
    zombies: tuple[str, ...] = ()
    # A version that it believes to serve, but whose bytes did not arrive as they were sent.
    distrusted: int | None = None
    pool: str = OWN
    fixed: bool = False  # whether it serves one checkpoint for good
    lane: int | None = None  # the partition of ``rollouts`` that this incarnation reads; None where it has not told

    def __post_init__(self) -> None:
        self.find_kinds()
        self.last_seen = 0.0
        self.patience_s = 0.0  # how long it may be silent; kept by the fleet
        # Attempts that it was sent and has not answered, in the order of their dispatch; kept by the fleet.
        self.assigned: Mapping[AttemptKey, Attempt] = {}
        self.work = 0  # weights of these together; kept by the fleet

    @property
    def free(self) -> int:
        return self.slots - len(self.assigned) if self.state == "ready" and not self.gone else 0

    @property
    def load(self) -> float:
        return self.work / self.slots

    @property
    def can_sync(self) -> bool:
        """Whether it can take part in a weight sync: also one that drains, as long as it has something to finish."""
        if self.gone or self.fixed:
            return False
        return self.state in ("ready", "syncing") or (self.state == "draining" and bool(self.assigned))

    def find_kinds(self) -> None:
        self.kinds: frozenset[Kind] = frozenset((self.pool, workflow) for workflow in self.workflows)

    def needs_no_version(self, *, trained: bool) -> bool:
        """Whether it may run what it serves no version for. ``trained``: whether a version was published."""
        return self.fixed and (self.pool != OWN or not trained)
