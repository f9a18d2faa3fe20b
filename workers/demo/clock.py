"""What the demo's time goes to."""

import time
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

    def stage(self, name: str) -> "_Stage":
        return _Stage(self, name)

    def begin(self, name: str) -> float:
        """Show that a stage begins; returns when, for who measures it."""
        self._display.stage(name)
        return time.perf_counter()


class _Stage:
    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name, self._began = clock, name, 0.0

    def __enter__(self) -> None:
        self._began = self._clock.begin(self._name)

    def __exit__(self, *_: object) -> None:
        self._clock.stages[self._name] = time.perf_counter() - self._began
