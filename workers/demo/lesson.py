"""What the demo does with its mesh: test (held out) -> train, step by step -> test (held out) -> report.

It is imported while the broker starts: it needs all that a client of the mesh does, and before it nothing does.

Failures: a batch is aborted, or all its tasks fail: :class:`DemoError`.

Training goes on until a check has passed, or all steps are used up.

::

    produce --- reward up ---> wait --- all that is produced is trained ---> check --- all right ---> end
       ^                          |                                              |
       '-------- otherwise -------'----------------------------------------------'

The mean reward of what is drawn does not tell: a model that never says one digit at one place keeps 0.975 of it, and
answers a tenth of all prompts wrongly. So prompts with all digits at all places are asked as a user would ask them.

What has passed is trained no further, for the next step may cost it answers: the version that was checked is the one
that is tested at the end, and kept.
"""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from schemas import BatchLifecycleState
from schemas.codec import decode
from schemas.task import Task
from schemas.topics import TASKS
from trinity_bus.bus import Bus, Producer
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.errors import TrinityError
from trinity_bus.runtime.supervisor import Activity
from trinity_bus.telemetry import setup_telemetry
from trinity_bus.view import BatchView, MeshFollower, MeshState, StepView, follow
from workers.demo.display import Clock, Display
from workers.demo.report import PLOT, Summary, import_matplotlib, plot, step_summary
from workers.demo.subjects import DemoOptions, DemoSubject
from workers.runs import MODEL, SUMMARY
from workers.taskset.dataset import EvalSet

STEADY_STEPS: Final = 4
AHEAD: Final = 2  # Batches in the log beyond those that are trained


def stays_up(rewards: Sequence[float], least: float | None) -> bool:
    """Whether a check is worth its while: the last rewards are no less than ``least``, None where it never is."""
    steady = rewards[-STEADY_STEPS:]
    return least is not None and len(steady) == STEADY_STEPS and min(steady) >= least


HELD_OUT = "held-out"
CHECK = "check"
CHECK_EVERY = 2  # Of the tasks to learn from, the share that a check asks is one in so many
_UPDATE_S: Final = 0.1
# What is shown may be so old: to fetch each record by itself would take time from those that work
_GATHER_S: Final = 0.1
_TASKS_KEY: Final = "demo"
# Where the model has them
_MODEL_FILES: Final = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


class DemoError(TrinityError):
    """The mesh did something that the demo cannot go on with."""


@asynccontextmanager
async def connected(
    settings: Settings, kafka: KafkaSettings, options: DemoOptions, display: Display, clock: Clock
) -> AsyncIterator["Lesson"]:
    own = settings.telemetry.model_copy(update={"run_dir": options.run_dir})
    telemetry = setup_telemetry("demo", own, namespace=settings.kafka.namespace)
    try:
        async with Bus(kafka, client_id="demo") as bus:
            await bus.ensure_topics()
            async with bus.producer() as producer, follow(bus, whole=True, gather_s=_GATHER_S) as follower:
                yield Lesson(options, display, clock, producer=producer, follower=follower)
    finally:
        telemetry.shutdown()


class Lesson:
    """What is done with the mesh once it is launched."""

    def __init__(
        self, options: DemoOptions, display: Display, clock: Clock, *, producer: Producer, follower: MeshFollower
    ) -> None:
        self._options = options
        self._display = display
        self._clock = clock
        self._producer = producer
        self._follower = follower
        self._held_out = load_tasks(options.subject, "held_out")
        self._first_task: str | None = None

    async def run(self, activities: Callable[[], Sequence[Activity]]) -> Summary:
        clock = self._clock
        with clock.stage("start the services"):
            while not self._all_serve(0):
                self._display.starting(activities())
                await self._next()
        with clock.stage("test before"):
            reward_before, exact_before = await self._examine("before")
        with clock.stage("train"):
            newest = await self._train()
        with clock.stage("test after"):
            # Here explorers are at work, and the trainer's core is free.
            (reward_after, exact_after), _ = await asyncio.gather(
                self._examine("after"), asyncio.to_thread(import_matplotlib)
            )
        with clock.stage("report"):
            self._keep_model(newest)
            summary = Summary(
                run_id=self._options.run_dir.name,
                subject=self._options.subject.name,
                seed=self._options.seed,
                explorers=self._options.explorers,
                max_staleness=self._options.max_staleness,
                model_version=newest.version,
                reward_before=reward_before,
                reward_after=reward_after,
                exact_before=exact_before,
                exact_after=exact_after,
                held_out_tasks=len(self._held_out),
                train_seconds=clock.stages["train"],
                time_to_first_reward_s=clock.first_reward_s or clock.elapsed_s,
                total_seconds=clock.elapsed_s,
                tokens=self._view.response_tokens,
                stages=clock.stages,
                steps=[step_summary(self._view, step) for step in self._view.trained],
                model=str(self._options.run_dir / MODEL),
                trace_task=self._first_task or "",
            )
            plot(summary, self._options.run_dir / PLOT)
        summary.write(self._options.run_dir / SUMMARY)
        return summary

    async def _examine(self, label: str) -> tuple[float, float]:
        # Have all held-out tasks answered by the newest weights. Returns mean reward and share without a fault.
        reward, exact = await self._ask(self._held_out, label, HELD_OUT)
        self._display.note(f"held-out reward {label} training: {reward:.3f} ({exact:.1%} without a fault)")
        return reward, exact

    async def _ask(self, tasks: Sequence[Task], label: str, name: str) -> tuple[float, float]:
        # Have tasks answered greedily. Returns mean reward and share without a fault.
        exam = EvalSet(name, tuple(tasks)).of_version("demo", label)
        await self._send(exam)
        metrics = (await self._finalized(str(exam[0].batch_id))).metrics
        return metrics[f"eval/{name}/reward/mean@1"], metrics[f"eval/{name}/exact/mean@1"]

    async def _check(self, steps: int) -> float:
        # Ask prompts that the model is trained on; held-out ones stay unseen until the end
        _, exact = await self._ask(check_tasks(self._options.subject), f"step-{steps}", CHECK)
        self._display.note(f"after step {steps}: {exact:.1%} of prompts trained on without a fault")
        return exact

    async def _train(self) -> StepView:
        # Train until the model has learned or the steps are used up; returns the last step, once its weights serve
        stream, produced = train_stream(load_tasks(self._options.subject, "train"), self._options.seed), 0
        steps, checked = self._options.steps, 0
        least = self._options.subject.reward_up if self._options.early_stop else None
        while True:
            trained = self._view.trained
            rewards = [reward for step in trained if (reward := self._view.reward(step)) is not None]
            is_due, is_over = stays_up(rewards[checked:], least), len(trained) == steps
            if not is_due and produced < min(len(trained) + AHEAD, steps):
                await self._send_batch(stream)
                produced += 1
            elif is_over or (is_due and len(trained) == produced):
                newest, checked = trained[-1], len(rewards)
                # An evaluation is of the newest version that is out.
                await self._until(partial(self._all_serve, newest.version))
                if is_over or await self._check(newest.step) == 1.0:
                    return newest
            else:
                await self._next()

    async def _send_batch(self, stream: Iterator[Task]) -> None:
        tasks = list(islice(stream, self._options.subject.batch_size))
        self._first_task = self._first_task or tasks[0].task_id
        await self._send(tasks)

    async def _send(self, tasks: Sequence[Task]) -> None:
        # To one partition: what a batch has, and in which order it is trained on, is then the same in every run.
        sent = [await self._producer.send(TASKS, _TASKS_KEY, task) for task in tasks]
        await asyncio.gather(*sent)

    async def _finalized(self, batch_id: str) -> BatchView:

        def done() -> bool:
            batch = self._view.batches.get(batch_id)
            return batch is not None and batch.state in {BatchLifecycleState.FINALIZED, BatchLifecycleState.ABORTED}

        await self._until(done)
        batch = self._view.batches[batch_id]
        if batch.reward is None:
            why = batch.reason or "; ".join(self._view.errors) or "see the logs"
            raise DemoError(
                f"batch {batch_id} is {batch.state} without a reward, {batch.failed} of {batch.expected} tasks "
                f"failed: {why}"
            )
        return batch

    @property
    def _view(self) -> MeshState:
        return self._follower.state

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._next()

    async def _next(self) -> None:
        await self._follower.changed(_UPDATE_S)
        self._clock.saw(self._view)
        self._display.update(self._view)

    def _all_serve(self, version: int) -> bool:
        return self._view.serving(version) == sorted(self._options.explorer_names)

    def _keep_model(self, step: StepView) -> None:
        # Copy the trained model out of the trainer's checkpoint, which has much beside it
        if step.checkpoint is None:
            raise DemoError(f"step {step.step} has no checkpoint")
        target = self._options.run_dir / MODEL
        target.mkdir(exist_ok=True)
        for name in _MODEL_FILES:
            with suppress(FileNotFoundError):
                shutil.copyfile(Path(step.checkpoint) / name, target / name)


def load_tasks(subject: DemoSubject, name: Literal["train", "held_out"]) -> list[Task]:
    """Return a subject's tasks: those to learn from, or those to be tested with."""
    text = resources.files("workers.demo.tasks").joinpath(f"{subject.tasks}{name}.jsonl").read_text(encoding="utf-8")
    return [decode(line.encode(), Task) for line in text.splitlines()]


def train_stream(tasks: Sequence[Task], seed: int) -> Iterator[Task]:
    """Without end: the tasks in random order, then again in another order, each time under new ids."""
    rng = random.Random(seed)  # noqa: S311 - an order that a seed repeats is the point
    order = list(tasks)
    epoch = 0
    while True:
        epoch += 1
        rng.shuffle(order)
        for task in order:
            yield task.model_copy(update={"task_id": f"{task.task_id}/{epoch}"})


def check_tasks(subject: DemoSubject) -> list[Task]:
    """Return tasks to learn from in which every digit stands at every place: what tells whether to go on training."""
    return load_tasks(subject, "train")[::CHECK_EVERY]
