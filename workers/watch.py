"""The state of a mesh as something to print."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas import BatchLifecycleState
from schemas.errors import by_number, counted, one_line
from trinity_bus.view import BatchView, MeshState, runner_values, unserved_line

_BARS: Final = "▁▂▃▄▅▆▇█"
_RECENT: Final = 6  # Batches shown
_WIDTH: Final = 40  # Of the rewards' bars
_COLOURS: Final = {
    "pending": "dim",
    "running": "yellow",
    "finalizing": "yellow",
    "finalized": "green",
    "aborted": "red",
    "ready": "green",
    "syncing": "cyan",
    "starting": "yellow",
    "draining": "dim",
    "left": "dim",
    "idle": "dim",
    "busy": "green",
    "stopping": "red",
    "lost": "red",
}


def sparkline(values: Sequence[float], width: int) -> str:
    """Values from 0 to 1 as bars of eight heights; neighbours are averaged where there are more than ``width``.

    >>> sparkline([0.0, 0.5, 1.0], 10)
    '▁▅█'
    """
    if len(values) > width:
        bounds = [round(i * len(values) / width) for i in range(width + 1)]
        parts = [values[begin:end] for begin, end in pairwise(bounds)]
        values = [sum(part) / len(part) for part in parts]
    heights = [min(max(value, 0.0), 1.0) for value in values]
    return "".join(_BARS[min(int(height * len(_BARS)), len(_BARS) - 1)] for height in heights)


def tasks(batch: BatchView) -> str:
    """How many tasks have a result, of how many; those of an open batch are what has come so far."""
    if batch.expected is None:
        return f"{batch.completed}/{batch.accepted} open"
    return f"{batch.completed}/{batch.expected}"


def span(seconds: float) -> str:
    """Return a stretch of time in the largest unit of which there are two.

    >>> span(4.2), span(75), span(7300), span(200_000)
    ('4 s', '75 s', '2 h', '2 d')
    """
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


# By the names of columns
_OF_BATCH: Final[Mapping[str, Callable[[BatchView, MeshState], str | Text]]] = {
    "batch": lambda batch, _: Text(batch.batch_id, overflow="fold"),
    "type": lambda batch, _: batch.batch_type if batch.batch_type == "eval" else f"train {batch.sequence or ''}",
    "state": lambda batch, _: Text(batch.state, _COLOURS[batch.state]),
    "tasks": lambda batch, _: tasks(batch),
    "failed": lambda batch, _: str(batch.failed),
    "aborted": lambda batch, _: str(batch.aborted),
    "age": lambda batch, view: span(view.now - batch.created_at),
    "needs version": lambda batch, _: str(batch.min_version),
    "reward": lambda batch, _: "" if batch.reward is None else f"{batch.reward:.3f}",
    "reason": lambda batch, _: Text(one_line(batch.reason or "")),
}


def _batches(view: MeshState, shown: Sequence[BatchView], names: Sequence[str]) -> Table:
    states = view.states
    counts = [f"{states[state]} {state}" for state in BatchLifecycleState if states[state]]
    table = Table(title="batches: " + (", ".join(counts) or "none"))
    for name in names:
        table.add_column(name, no_wrap=name not in {"batch", "reason"})
    for batch in shown:
        table.add_row(*(_OF_BATCH[name](batch, view) for name in names))
    return table


def all_batches_table(view: MeshState, last: int) -> Table:
    """Every batch that has not ended, and the newest of the others."""
    ended = [batch.batch_id for batch in view.batches.values() if batch.ended]
    left_out = set(ended[: max(0, len(ended) - last)])
    shown = [batch for batch in view.batches.values() if batch.batch_id not in left_out]
    # On a terminal of 80 columns there is no room for one that is empty.
    reason = ["reason"] * any(batch.reason for batch in shown)
    table = _batches(view, shown, ["batch", "type", "state", "tasks", "failed", "aborted", "age", "reward", *reason])
    if left_out:
        table.caption = (
            f"and {counted(len(left_out), 'older one')} that {by_number(len(left_out), 'has', 'have')} ended"
        )
    return table


def runners_table(view: MeshState) -> Table:
    table = Table("runner", "state", "pid", "at", "version", "for", "done", "replaced", "memory", title="runners")
    for runner in view.runners():
        values = runner_values(runner)
        others = f" and {len(runner.running) - 1} more" if len(runner.running) > 1 else ""
        at = values.get("workflow_id") or (runner.running[0].task_id if runner.running else "")
        running_time = values.get("running_time")
        table.add_row(
            Text(runner.runner),
            Text(runner.state, _COLOURS[runner.state]),
            str(runner.pid),
            Text(one_line(str(at)) + others),
            Text(one_line(str(values.get("model_version", "")))),
            span(running_time) if isinstance(running_time, int | float) else "",
            str(runner.completed),
            str(runner.restarts),
            f"{runner.rss_mib:,.0f} MiB",
        )
    return table


def explorers_table(view: MeshState) -> Table:
    """Return a table with a row for each explorer that ever spoke."""
    table = Table("explorer", title="explorers")
    # On a terminal of 80 columns there is no room for one that is empty.
    pools = any(explorer.pool for explorer in view.explorers.values())
    for name in (*(["pool"] if pools else []), "state", "version", "running", "slots", "tokens/s", "syncs", "heard"):
        table.add_column(name)
    for explorer in sorted(view.explorers.values(), key=lambda e: e.name):
        gone = explorer.state != "left" and not view.is_alive(explorer)
        state = "lost" if gone else explorer.state
        failures = f" ({explorer.sync_failures} failed)" if explorer.sync_failures else ""
        table.add_row(
            Text(explorer.name),
            *([Text(explorer.pool or "")] if pools else []),
            Text(state, _COLOURS[state]),
            explorer.version_told,
            str(explorer.attempts),
            str(explorer.slots),
            f"{explorer.tokens_per_s:,.0f}" if state != "left" else "",
            f"{explorer.syncs}{failures}",
            f"{view.now - explorer.heard_at:.1f} s ago",
        )
    return table


def training_line(view: MeshState) -> Text:
    steps = view.trained
    if not steps:
        return Text("no step is trained yet", "dim")
    newest = steps[-1]
    rewards = [reward for step in steps if (reward := view.reward(step)) is not None]
    text = Text(f"step {newest.step}  version {newest.version}")
    if rewards:
        text.append(f"  reward {rewards[-1]:.3f} ")
        text.append(sparkline(rewards, _WIDTH), "green")
    for name, label in (("loss", "loss"), ("entropy", "entropy"), ("staleness_mean", "staleness")):
        if name in newest.metrics:
            text.append(f"  {label} {newest.metrics[name]:.3g}")
    return text


def mesh(view: MeshState, lag: Mapping[str, int] | None = None, held: Sequence[str] = ()) -> RenderableType:
    newest = list(view.batches.values())[-_RECENT:]
    batches = _batches(view, newest, ["batch", "type", "state", "tasks", "failed", "needs version", "reward"])
    parts: list[RenderableType] = [batches, explorers_table(view)]
    if (beat := view.coordinator) is not None:
        line = (
            f"{beat.coordinator}: {counted(beat.open_batches, 'open batch')}, {counted(beat.open_tasks, 'open task')}, "
            f"{counted(beat.running_attempts, 'running attempt')}, {beat.dynamic_timeout_s:g} s for each, heard "
            f"{span(view.now - view.coordinator_at)} ago"
        )
        parts.append(Text(line))
        parts.extend(Text(f"! {unserved_line(one)}", "red") for one in beat.unserved)
    if view.trainer is not None:
        parts.append(Text(f"{view.trainer.trainer}: {view.trainer.state}, step {view.trainer.step}"))
    if view.announced is not None:
        model = view.announced
        members = ", ".join(member.explorer for member in model.members) or "nobody"
        parts.append(
            Text(f"model {model.model}: version {model.version}, epoch {model.epoch}, {model.method}, to {members}")
        )
    parts.append(training_line(view))
    if lag is not None:
        parts.append(Text("coordinator's lag: " + ", ".join(f"{n:,} {name}" for name, n in lag.items())))
    parts.extend(Text(f"! {line}", "red") for line in held)
    parts.extend(Text(f"! {one_line(error)}", "red") for error in view.errors)
    return Group(*parts)
