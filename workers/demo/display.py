"""What the demo shows while it runs: a live view in a terminal, else a line for whatever is news; and its clock."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from schemas.errors import one_line
from trinity_bus.runtime.process import age_s
from trinity_bus.runtime.supervisor import Activity

if TYPE_CHECKING:
    from trinity_bus.view import MeshState

_REFRESH_S: Final = 0.25
_WORTH_S: Final = 0.1  # How long something must have taken for a line to say so
_SILENT_S: Final = 3.0  # After which a line says what goes on, without a terminal


type Display = PlainDisplay | LiveDisplay


def make_display(console: Console, steps: int | None) -> Display:
    return LiveDisplay(console, steps) if console.is_terminal else PlainDisplay(console, steps)


class PlainDisplay:
    """A line for each stage, each step and each held-out test: for pipes, files and continuous integration.

    What has ended is said with how long it took, and after some seconds without a line what goes on, and for how long.
    """

    def __init__(self, console: Console, steps: int | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._console = console
        self._steps = steps
        self._clock = clock
        self._shown = 0
        self._doing: dict[str, Activity] = {}
        self._began = self._said = self._stage_began = clock()
        self._stage = ""

    def running(self) -> AbstractContextManager[object]:
        return nullcontext()

    def stage(self, name: str) -> None:
        now, before = self._clock(), self._stage
        self.note(f"{name} ..." + (f" ({before} took {now - self._stage_began:.1f} s)" if before else ""))
        self._stage, self._stage_began = name, now
        self._doing.clear()

    def note(self, text: str) -> None:
        self._said = self._clock()
        self._console.print(f"{self._said - self._began:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

    def starting(self, activities: Sequence[Activity]) -> None:
        """Show what services do until all of them serve. Called often."""
        # A line for each that has begun something else, with how long after its line before
        for activity in activities:
            before = self._doing.get(activity.name)
            self._doing[activity.name] = activity
            if before is None or before.what != activity.what:
                took = f" (+{before.seconds:.1f} s)" if before and before.seconds >= _WORTH_S else ""
                self.note(f"{activity.name}: {activity.what}{took}")

    def update(self, view: "MeshState") -> None:
        for step in view.trained[self._shown :]:
            reward = view.reward(step)
            if reward is None:
                # Its batch has not been read yet: other topic, same moment.
                break
            self._shown += 1
            versions = " ".join(f"{e.name}=v{e.model_version}" for e in view.explorers.values())
            of = "" if self._steps is None else f"/{self._steps}"
            loss, staleness = (step.metrics.get(name, 0.0) for name in ("loss", "staleness_mean"))
            self.note(
                f"step {step.step}{of}  reward {reward:.3f}  loss {loss:+.4f}  staleness {staleness:.2f}  "
                f"{view.tokens_per_s:,.0f} tokens/s  {versions}"
            )
        if self._clock() - self._said >= _SILENT_S:
            doing = [
                f"{each.name}: {each.what}" + (f", {each.seconds:.0f} s" if each.seconds else "")
                for each in self._doing.values()
            ]
            doing = doing or [f"{view.tokens_per_s:,.0f} tokens/s"]
            self.note(f"{self._stage}, {self._clock() - self._stage_began:.0f} s: {'; '.join(doing)}")


class LiveDisplay:
    def __init__(self, console: Console, steps: int | None) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._bar = self._progress.add_task("starting", total=steps)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = 0.0
        self._view: MeshState | None = None
        self._activities: Sequence[Activity] = ()

    def running(self) -> AbstractContextManager[object]:
        return self._live

    def stage(self, name: str) -> None:
        self._progress.update(self._bar, description=f"[bold]{name}[/]")
        self._activities = ()
        self._draw()

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def starting(self, activities: Sequence[Activity]) -> None:
        self._activities = activities

    def update(self, view: "MeshState") -> None:
        self._view = view
        if time.perf_counter() - self._drawn >= _REFRESH_S:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.perf_counter()
        self._progress.update(self._bar, completed=len(self._view.trained) if self._view else 0)
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        view = self._view
        parts: list[RenderableType] = [self._progress]
        if self._activities:
            parts.append(_activities_table(self._activities))
        if view is not None and (view.explorers or view.batches or view.errors):
            # Whoever has a view has imported nearly all of it; before that, nothing here waits for it.
            from workers.watch import mesh

            tokens = f"{view.tokens_per_s:,.0f} tokens/s   {view.response_tokens:,} response tokens in all"
            parts += [Text(tokens, "dim"), mesh(view)]
        return Panel(Group(*parts), title="Trinity Bus", border_style="cyan")


def _activities_table(activities: Sequence[Activity]) -> Table:
    from workers.watch import span

    table = Table("service", "does", "for", box=None, expand=True)
    for activity in activities:
        table.add_row(
            activity.name,
            Text(one_line(activity.what), overflow="ellipsis", no_wrap=True),
            span(activity.seconds) if activity.seconds else "",
        )
    return table


class Clock:
    """Stages and how long each took, in seconds, from the start of this process."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._began = time.perf_counter() - age_s()
        self.stages: dict[str, float] = {}
        self.first_reward_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._began

    def saw(self, view: "MeshState") -> None:
        if self.first_reward_s is None and any(batch.reward is not None for batch in view.batches.values()):
            self.first_reward_s = self.elapsed_s

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = self.begin(name)
        try:
            yield
        finally:
            self.stages[name] = time.perf_counter() - began

    def begin(self, name: str) -> float:
        """Show that a stage begins; returns when, for who measures it."""
        self._display.stage(name)
        return time.perf_counter()
