"""How long batches with long-tailed responses take, in simulated time: the real machine, engines that are numbers.

Lengths are log-normal, of prompts and of the runs of a prompt around it, together with a sigma of 1. An engine computes
``FULL_SPEED`` runs at a token a second, and more at the same speed in sum. The next batch begins when one is FINALIZED,
and the tasks of an epoch come again in the next, shuffled. The least possible is the longest run, or all tokens by the
speed of all engines.
"""

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks._records import completed
from schemas import BatchLifecycleState, BatchRecord, Dispatch, ExplorerHeartbeat, Task
from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination import CoordinatorMachine, Effect, EventArrived, Origin, TaskArrived, Write

EXPLORERS: Final = 8
FULL_SPEED: Final = 32
BATCH, BATCHES, EPOCHS, GROUP = 128, 4, 3, 8
MEDIAN, OF_PROMPTS, OF_RUNS = 500.0, 0.9, 0.4


@dataclass(slots=True)
class Engine:
    clock: float = 0.0  # tokens that a run got which was there from the beginning
    # When each run ends by that clock, a number, and what all runs of its attempt share: those left, and its answer.
    runs: list[tuple[float, int, list[Any]]] = field(default_factory=list)

    @property
    def slowness(self) -> float:
        return max(1.0, len(self.runs) / FULL_SPEED)

    def ends_in(self) -> float:
        return (self.runs[0][0] - self.clock) * self.slowness if self.runs else math.inf


class MakespanSimulation:
    def __init__(self, seed: int, slots: int, *, per_part: int | None, longest_first: bool) -> None:
        settings = CoordinatorSettings(
            batch_size=BATCH, group_size=GROUP, max_repeat_times_per_runner=per_part, longest_first=longest_first,
            max_staleness=1_000_000, explorer_timeout_s=1e9, task_timeout_s=1e9, max_open_tasks=2 * BATCH,
        )  # fmt: skip
        self._machine = CoordinatorMachine(settings, SynchronizerSettings())
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._medians = [MEDIAN * self._random.lognormvariate(0, OF_PROMPTS) for _ in range(BATCH * BATCHES)]
        self._engines = {f"explorer-{number}": Engine() for number in range(EXPLORERS)}
        self._now, self._count, self._ended = 0.0, 0, False
        self._lengths: dict[str, list[int]] = {}  # of the runs of each prompt of the batch
        for name in self._engines:
            life = {"explorer": name, "incarnation": "1", "state": "ready", "workflows": ["math"]}
            beat = ExplorerHeartbeat(**life, slots=slots, model_version=0)
            self._machine.handle(EventArrived(beat), 0.0)

    def epochs(self) -> Iterator[float]:
        """Return of each epoch the time that its batches took, over the least that they could."""
        for epoch in range(EPOCHS):
            prompts = self._random.sample(range(len(self._medians)), len(self._medians))
            spent = least = 0.0
            for first in range(0, len(prompts), BATCH):
                began, self._ended = self._now, False
                self._lengths.clear()
                for prompt in prompts[first : first + BATCH]:
                    self._lengths[str(prompt)] = [self._length(prompt) for _ in range(GROUP)]
                    task = Task(task_id=f"{epoch}/{prompt}", workflow="math", prompt=str(prompt))
                    self._carry_out(self._machine.handle(TaskArrived(task, Origin(0, 0)), self._now))
                while not self._ended:
                    self._advance()
                spent += self._now - began
                tokens = [length for lengths in self._lengths.values() for length in lengths]
                least += max(*tokens, sum(tokens) / (EXPLORERS * FULL_SPEED))
            yield spent / least

    def _length(self, prompt: int) -> int:
        return 1 + int(self._medians[prompt] * self._random.lognormvariate(0, OF_RUNS))

    def _advance(self) -> None:
        engine = min(self._engines.values(), key=Engine.ends_in)
        seconds = engine.ends_in()
        self._now += seconds
        for each in self._engines.values():
            each.clock += seconds / each.slowness
        attempt = heapq.heappop(engine.runs)[2]
        attempt[0] -= 1
        if not attempt[0]:
            self._carry_out(self._machine.handle(EventArrived(attempt[1]), self._now))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Write(record=Dispatch() as order):
                    lengths = self._lengths[order.task.prompt or ""][order.run_id_base :][: order.repeat_times]
                    answer = completed(order, version=0, seconds=1.0, response_tokens=sum(lengths))
                    engine, attempt = self._engines[order.explorer], [len(lengths), answer]
                    for length in lengths:
                        self._count += 1
                        heapq.heappush(engine.runs, (engine.clock + length, self._count, attempt))
                case Write(record=BatchRecord() as batch):
                    self._ended = batch.state is BatchLifecycleState.FINALIZED
        # The changelog is not kept here, but must not grow.
        self._machine.changes()
