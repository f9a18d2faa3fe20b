"""A mesh's view as something to print."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas import BatchLifecycleState
from workers.watch.state import MeshView

_BARS: Final = "▁▂▃▄▅▆▇█"
_RECENT: Final = 6
"""Batches shown."""
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
    "lost": "red",
}


def sparkline(values: Sequence[float], width: int, low: float = 0.0, high: float = 1.0) -> str:
    """Values as bars of eight heights; neighbours are averaged where there are more than ``width``.

    >>> sparkline([0.0, 0.5, 1.0], 10)
    '▁▅█'
    """
    if len(values) > width:
        bounds = [round(i * len(values) / width) for i in range(width + 1)]
        parts = [values[begin:end] for begin, end in pairwise(bounds)]
        values = [sum(part) / len(part) for part in parts]
    span = (high - low) or 1.0
    heights = [min(max((value - low) / span, 0.0), 1.0) for value in values]
    return "".join(_BARS[min(int(height * len(_BARS)), len(_BARS) - 1)] for height in heights)


def batches_table(view: MeshView) -> Table:
    """The newest batches."""
    table = Table("batch", "type", "state", "tasks", "failed", "needs version", "reward", title=_counts(view))
    newest = list(view.batches.values())[-_RECENT:]
    for batch in newest:
        table.add_row(
            Text(batch.batch_id),
            batch.batch_type if batch.batch_type == "eval" else f"train {batch.sequence or ''}",
            Text(batch.state, _COLOURS[batch.state]),
            f"{batch.completed}/{batch.expected}",
            str(batch.failed),
            str(batch.min_version),
            "" if batch.reward is None else f"{batch.reward:.3f}",
        )
    return table


def explorers_table(view: MeshView) -> Table:
    """One row for each explorer that ever spoke."""
    table = Table("explorer", "state", "version", "running", "slots", "tokens/s", "syncs", "heard", title="explorers")
    for explorer in sorted(view.explorers.values(), key=lambda e: e.name):
        gone = explorer.state != "left" and not explorer.alive(view.now)
        state = "lost" if gone else explorer.state
        failures = f" ({explorer.sync_failures} failed)" if explorer.sync_failures else ""
        table.add_row(
            Text(explorer.name),
            Text(state, _COLOURS[state]),
            str(explorer.model_version),
            str(explorer.running),
            str(explorer.slots),
            f"{explorer.tokens_per_s:,.0f}" if state != "left" else "",
            f"{explorer.syncs}{failures}",
            f"{view.now - explorer.heard_at:.1f} s ago",
        )
    return table


def training_line(view: MeshView, width: int = 40) -> Text:
    """The newest step and the rewards up to it, on one line."""
    steps = view.trained
    if not steps:
        return Text("no step is trained yet", "dim")
    newest = steps[-1]
    rewards = [reward for step in steps if (reward := view.reward(step)) is not None]
    text = Text(f"step {newest.step}  version {newest.version}")
    if rewards:
        text.append(f"  reward {rewards[-1]:.3f} ")
        text.append(sparkline(rewards, width), "green")
    for name, label in (("loss", "loss"), ("entropy", "entropy"), ("staleness_mean", "staleness")):
        if name in newest.metrics:
            text.append(f"  {label} {newest.metrics[name]:.3g}")
    return text


def mesh(view: MeshView, lag: Mapping[str, int] | None = None) -> RenderableType:
    """Everything, for ``status``."""
    parts: list[RenderableType] = [batches_table(view), explorers_table(view)]
    if view.trainer is not None:
        parts.append(Text(f"{view.trainer.trainer}: {view.trainer.state}, step {view.trainer.step}"))
    if view.model is not None:
        model = view.model
        members = ", ".join(member.explorer for member in model.members) or "nobody"
        parts.append(
            Text(f"model {model.model}: version {model.version}, epoch {model.epoch}, {model.method}, to {members}")
        )
    parts.append(training_line(view))
    if lag is not None:
        parts.append(Text("coordinator's lag: " + ", ".join(f"{n:,} {name}" for name, n in lag.items())))
    parts.extend(Text(f"! {error}", "red") for error in view.errors)
    return Group(*parts)


def _counts(view: MeshView) -> str:
    states = view.states
    shown = [f"{states[state]} {state}" for state in BatchLifecycleState if states[state]]
    return "batches: " + (", ".join(shown) or "none")
