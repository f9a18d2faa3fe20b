"""The coordinator and the runners of the fleet, folded from what they say. Pure: no clock.

Times are those of the log, in seconds since the Unix epoch, as each record says when it was written. An explorer that
has said nothing for ``alive_s`` is left out, and one that says that it leaves at once; a report of an earlier
incarnation of an explorer ends with the first word of the next.
"""

from dataclasses import dataclass, field
from typing import Any

from schemas import CoordinatorHeartbeat, ExplorerHeartbeat, ExplorerLeft, RunnersReport, RunnerState

ALIVE_S = 10.0


@dataclass(slots=True)
class _Explorer:
    incarnation: str
    heard_at: float
    running: frozenset[str] = frozenset()
    runners: list[RunnerState] = field(default_factory=list)


@dataclass(slots=True)
class FleetView:
    """What is known of the fleet.

    Feed it every record of ``explorer-events`` and ``coordinator-events``, in the order of each partition.

    Args:
        alive_s: Silence after which an explorer counts as lost, in seconds.
    """

    alive_s: float = ALIVE_S
    coordinator: CoordinatorHeartbeat | None = field(default=None, init=False)
    """The newest heartbeat of the one that works."""
    coordinator_at: float = field(default=0.0, init=False)
    """When it was written."""
    now: float = field(default=0.0, init=False)
    """Time of the newest record, or of the last ``tick``."""
    _explorers: dict[str, _Explorer] = field(default_factory=dict, init=False)

    def tick(self, now: float) -> None:
        """Let time go on where no record comes: seconds since the epoch."""
        self.now = max(self.now, now)

    def apply(self, record: object, at: float) -> None:
        """Take one record, written at ``at``; those of other kinds change nothing."""
        self.tick(at)
        match record:
            case CoordinatorHeartbeat():
                self.coordinator, self.coordinator_at = record, at
            case ExplorerHeartbeat():
                explorer = self._of(record.explorer, record.incarnation, at)
                explorer.running = frozenset(attempt.task_id for attempt in record.running)
            case RunnersReport():
                self._of(record.explorer, record.incarnation, at).runners = record.runners
            case ExplorerLeft():
                known = self._explorers.get(record.explorer)
                if known is not None and known.incarnation == record.incarnation:
                    del self._explorers[record.explorer]
            case _:
                return

    def runners(self) -> list[RunnerState]:
        """Every runner of the explorers that are alive, in the order of explorer and number."""
        return [runner for _, explorer in sorted(self._alive().items()) for runner in explorer.runners]

    def running_tasks(self) -> frozenset[str]:
        """Ids of the tasks that some explorer is at."""
        return frozenset(task_id for explorer in self._alive().values() for task_id in explorer.running)

    def _of(self, name: str, incarnation: str, at: float) -> _Explorer:
        explorer = self._explorers.get(name)
        if explorer is None or explorer.incarnation != incarnation:
            explorer = self._explorers[name] = _Explorer(incarnation, at)
        explorer.heard_at = max(explorer.heard_at, at)
        return explorer

    def _alive(self) -> dict[str, _Explorer]:
        return {name: e for name, e in self._explorers.items() if self.now - e.heard_at <= self.alive_s}


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
