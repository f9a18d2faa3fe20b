"""What a view of the mesh is made of, and how much of each it keeps.

Times are those of the log, in seconds since the Unix epoch.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal

from schemas import BatchLifecycleState, ExplorerHeartbeat, PublishedVersion, RunnerState, UnservedPool
from schemas.errors import by_number
from schemas.event import ExplorerState, Follows
from schemas.record import BatchType, Metrics

RATE_WINDOW_S: Final = 5.0  # Tokens per second are averaged over this much time
RATE_SAMPLES: Final = 64  # Heartbeats that are kept for it, of one explorer


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a view keeps; what goes over is forgotten, the oldest first, and of batches those that have ended."""

    batches: int = 10_000  # More than a coordinator and the log of batches hold together with the settings as they come
    explorers: int = 1_000  # Those that have left count, until there is no room for them
    steps: int = 10_000
    versions: int = 1_000  # As many as the log keeps
    syncs: int = 10_000  # Answers of explorers that took a version, over all versions
    errors: int = 5
    text: int = 4_000  # Characters of one text that somebody wrote for people
    metrics: int = 1_000  # Of one batch, or one step

    def cut(self, text: str) -> str:
        return text if len(text) <= self.text else text[: self.text] + "..."

    def few(self, metrics: Metrics) -> Metrics:
        """Return no more metrics than are kept, the first ones, and none with a name that is too long."""
        return dict(islice(((name, value) for name, value in metrics.items() if len(name) <= self.text), self.metrics))


def unserved_line(one: UnservedPool) -> str:
    waiting = by_number(one.parts, "1 part of a task waits", f"{one.parts:,} parts of tasks wait")
    return f"no explorer serves pool {one.pool}: {waiting}"


def trim[K, V](kept: dict[K, V], most: int, oldest: Callable[[K], object] | None = None) -> None:
    """Forget entries until ``most`` are left: the lowest by ``oldest`` first, or in the order in which they came."""
    while len(kept) > most:
        del kept[next(iter(kept)) if oldest is None else min(kept, key=oldest)]  # type: ignore[arg-type]


@dataclass(slots=True)
class BatchView:
    batch_id: str
    batch_type: BatchType
    state: BatchLifecycleState
    sequence: int = 0
    expected: int | None = None  # Tasks that it will have; ``None`` for an open batch
    accepted: int = 0
    completed: int = 0  # Tasks with a result, failed ones too
    failed: int = 0
    aborted: int = 0
    min_wait_num: int | None = None
    min_version: int = 0
    reward: float | None = None  # Mean over its tasks, once it is finalized
    metrics: Metrics = field(default_factory=dict)
    reason: str | None = None  # Why it was aborted, or is to be passed over
    created_at: float = 0.0  # Of the oldest record of it that the log still has
    changed_at: float = 0.0  # Of the newest
    running_at: float | None = None
    finalized_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.state in {BatchLifecycleState.FINALIZED, BatchLifecycleState.ABORTED}


@dataclass(slots=True)
class ExplorerView:
    name: str
    incarnation: str
    state: ExplorerState | Literal["left"] = "starting"
    slots: int = 0
    running: frozenset[str] = frozenset()  # Ids of the tasks that it is at
    attempts: int = 0  # It is at so many attempts at these
    runners: list[RunnerState] = field(default_factory=list)  # By its last report
    model_version: int = -1
    pool: str | None = None  # Whose tasks it answers; None for those of the model that is trained
    follows: Follows = "trainer"
    beat: ExplorerHeartbeat | None = None  # Its last
    heard_at: float = 0.0
    patience_s: float = 0.0  # It may be silent for so long at least
    syncs: int = 0
    sync_failures: int = 0
    # (time, tokens generated) of its heartbeats within the window
    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_SAMPLES))

    @property
    def version_told(self) -> str:
        """The version for people; of how many of its servers, where it stands for several."""
        if self.follows == "none":
            return "fixed"
        servers = [one.state for one in self.beat.members] if self.beat is not None else []
        of = f" ({servers.count('serving')} of {len(servers)})" if servers else ""
        return f"{self.model_version}{of}"

    @property
    def tokens_per_s(self) -> float:
        if len(self.samples) < 2:
            return 0.0
        (begin, first), (end, last) = self.samples[0], self.samples[-1]
        return (last - first) / (end - begin) if end > begin else 0.0


@dataclass(slots=True)
class StepView:
    step: int
    version: int
    batch_id: str | None
    trained_at: float
    seconds: float
    metrics: Metrics
    checksum: str
    checkpoint: str | None


@dataclass(frozen=True, slots=True)
class SyncView:
    at: float
    checksum: str  # Of the bytes that it received


@dataclass(frozen=True, slots=True)
class VersionRow:
    record: PublishedVersion
    published_at: float
    served_by: list[str]  # Explorers that serve it now
    announced: bool  # Whether it is the one to be served
    pinned: bool
    asked_by: str | None  # Who asked that it be served, where it is, and somebody did


def runner_values(runner: RunnerState) -> dict[str, Any]:
    """Return a runner's state as one map.

    The values of the attempt that it has been at longest stand beside those of the runner, under the names that they
    have in the reference: ``workflow_id``, ``model_version``, ``begin_time``, ``running_time``, and what its workflow
    has set. ``attempts`` has those of all.
    """
    values = dict(runner.values[0]) if runner.values else {}
    own = {
        "state": runner.state,
        "pid": runner.pid,
        "completed": runner.completed,
        "restarts": runner.restarts,
        "rss_mib": runner.rss_mib,
        "attempts": [dict(attempt) for attempt in runner.values],
    }
    # A workflow may set anything, under these names too.
    return {**values, **own}


def state_table(states: dict[str, dict[str, Any]]) -> str:
    """States of runners as an aligned table: a line each, a column for each key.

    >>> print(state_table({"a/0": {"state": "idle"}, "a/1": {"state": "busy", "model_version": 3}}))
    runner  state  model_version
    a/0     idle   -
    a/1     busy   3
    """
    keys = list(dict.fromkeys(key for state in states.values() for key in state if key != "attempts"))
    rows = [["runner", *keys]]
    rows += [[name, *(_cell(state.get(key)) for key in keys)] for name, state in states.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(keys) + 1)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    # What a workflow sets may be long, and must not steer a terminal.
    cut = text if len(text) <= 40 else text[:37] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
