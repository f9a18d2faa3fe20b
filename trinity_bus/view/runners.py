"""States of runners, for people: as one map, and as a table."""

from typing import Any

from schemas import RunnerState


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
