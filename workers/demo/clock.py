"""What the demo's time goes to."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trinity_bus.runtime.process import age_s
from workers.demo.display import Display

if TYPE_CHECKING:
    from trinity_bus.view import MeshState


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
