"""What a run of the demo leaves behind: ``summary.json``, ``reward.png`` and a table."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from trinity_bus.runtime.plain_files import write_plain
from trinity_bus.view import MeshState, StepView

PLOT = "reward.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """A step's figures. Times in seconds; None where the log does not tell."""

    step: int
    version: int
    reward: float | None
    loss: float | None
    staleness: float | None
    rewarded_at: float | None  # When its batch was finalized, seconds since the Unix epoch
    # From the moment at which its tasks could be handed out (the batch's turn, and weights new enough) to its
    # manifest
    rollout_s: float | None
    train_s: float  # The trainer's part: fetching, choosing and training; not what it takes to save and publish
    sync_s: float | None  # From the news of the step until every explorer served its weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A whole run. Times in seconds."""

    run_id: str
    subject: str
    seed: int
    explorers: int
    max_staleness: int
    model_version: int  # Of the weights that the second evaluation was taken with
    reward_before: float  # Mean over held-out tasks: share of words in their place
    reward_after: float
    exact_before: float  # Share of held-out tasks that were answered without a fault
    exact_after: float
    held_out_tasks: int
    train_seconds: float
    time_to_first_reward_s: float  # From the start of the run to the first reward of any batch
    total_seconds: float  # Without stopping the services
    tokens: int  # Response tokens of all accepted rollouts and others
    stages: dict[str, float]
    steps: list[StepSummary] = field(default_factory=list)
    model: str  # Folder of the trained model
    trace_task: str  # A task whose trace goes all the way to a gradient

    def write(self, path: Path) -> None:
        write_plain(path, json.dumps(asdict(self), indent=2) + "\n")


def step_summary(view: MeshState, step: StepView) -> StepSummary:
    synced, batch = view.synced(step.version), view.batches.get(step.batch_id or "")
    rewarded_at, rollout_s = None if batch is None else batch.finalized_at, None
    if batch is not None and batch.running_at is not None and rewarded_at is not None:
        new_enough = [sync.at for sync in view.synced(batch.min_version).values()]
        rollout_s = rewarded_at - max(batch.running_at, min(new_enough, default=0.0))
    return StepSummary(
        step=step.step,
        version=step.version,
        reward=view.reward(step),
        loss=step.metrics.get("loss"),
        staleness=step.metrics.get("staleness_mean"),
        rewarded_at=rewarded_at,
        rollout_s=rollout_s,
        train_s=step.seconds,
        sync_s=max(sync.at for sync in synced.values()) - step.trained_at if synced else None,
    )


def results_table(summary: Summary) -> Table:
    table = Table("", "before", "after", title=f"Held out: {summary.held_out_tasks} prompts that were never trained on")
    table.add_row("reward", f"{summary.reward_before:.3f}", f"[bold green]{summary.reward_after:.3f}[/]")
    table.add_row("answered exactly", f"{summary.exact_before:.1%}", f"{summary.exact_after:.1%}")
    return table


def stages_table(summary: Summary) -> Table:
    table = Table("stage", "seconds", title="Where the time went", show_footer=False)
    for name, seconds in summary.stages.items():
        table.add_row(name, f"{seconds:.1f}")
    table.add_row("[bold]all[/]", f"[bold]{summary.total_seconds:.1f}[/]")
    table.add_section()
    table.add_row("first reward after", f"{summary.time_to_first_reward_s:.1f}")
    for label, values in (
        ("a step: rollouts", [step.rollout_s for step in summary.steps]),
        ("a step: training", [step.train_s for step in summary.steps]),
        ("a step: weights to all explorers", [step.sync_s for step in summary.steps]),
    ):
        known = [value for value in values if value is not None]
        if known:
            table.add_row(label, f"{fmean(known):.2f}")
    return table


def import_matplotlib() -> None:
    """Import what ``plot`` needs: half a second, which somebody may have to spare before."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: F401


@contextmanager
def chart(path: Path) -> Iterator[Any]:
    """Provide axes to draw on, which become a PNG. Needs no display."""
    import_matplotlib()
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
    yield axes
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    figure.tight_layout()
    path.unlink(missing_ok=True)  # a link would be written through
    figure.savefig(path)
    plt.close(figure)


def plot(summary: Summary, path: Path) -> None:
    """Draw the reward over steps, with both evaluations."""
    steps = [step for step in summary.steps if step.reward is not None]
    rewards = [summary.reward_before, summary.reward_after]
    with chart(path) as axes:
        axes.plot([step.step for step in steps], [step.reward for step in steps], label="train batches, sampled")
        axes.plot([0, summary.model_version], rewards, "o", label="held-out prompts, greedy")
        axes.set(xlabel="step", ylabel="reward", ylim=(0, 1.02), title=f"Reward, seed {summary.seed}")
