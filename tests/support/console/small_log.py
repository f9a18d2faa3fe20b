"""A small log as a mesh leaves it, written by a test: two steps, the second once more, one evaluation, a dead letter,
hostile text.

What a model would have written stands in ids and metrics, too: all of it may be hostile.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    CoordinatorHeartbeat,
    Dispatch,
    ExplorerHeartbeat,
    ManifestEntry,
    ModelVersion,
    Position,
    PublishedVersion,
    RolloutFinished,
    SkippedBatch,
    StepTrained,
    Task,
    TaskResult,
    TokenFigures,
    TrainerHeartbeat,
    WeightsSynced,
)
from schemas.batch import ResultPart
from schemas.step import LeftOut, StepBegun, StepEnded, StepGroup, ended_key, step_key
from schemas.token_figures import FLOAT16
from schemas.topic import Topic
from schemas.topics import (
    BATCHES,
    COORDINATOR_EVENTS,
    DEAD_LETTERS,
    EXPERIENCES,
    EXPLORER_EVENTS,
    MODEL_VERSIONS,
    RESULTS,
    ROLLOUTS,
    STEPS,
    TASKS,
    TOKEN_FIGURES,
    TRAINER_EVENTS,
    VERSION_HISTORY,
)
from tests.support.fakes.experiences import make_group
from trinity_bus.bus import Bus, Producer

HOSTILE: Final = "<script>alert(1)</script>"
REWARDS: Final = (0.67, 0.0, 1.0, 0.33)
SAMPLES: Final = 2 * 2 * len(REWARDS)
FIRST_TASK: Final = "task/1/0"
WHO: Final = {"explorer": "explorer-0", "incarnation": "a"}
SETTINGS: Final = {"explorer.temperature": "0.7", "explorer.workflow_modules": f'"{HOSTILE}"', "explorer.slots": ""}
REPLAY: Final = "replay-2"
TRAINER: Final[dict[str, Any]] = {"trainer": "trainer-0", "incarnation": "t", "model": "policy"}


async def write_small_log(bus: Bus) -> dict[str, Position]:
    """Write it; where each task's experiences lie."""
    async with bus.producer() as producer:
        log = _Writer(producer)
        places: dict[str, Position] = {}
        beat = ExplorerHeartbeat(
            **WHO, state="ready", slots=8, model_version=2, tokens_generated=100, settings=SETTINGS
        )
        await log.write(EXPLORER_EVENTS, "explorer-0", beat)
        await log.write(COORDINATOR_EVENTS, "c-0", _coordinator())
        its = {"trainer.advantage": '"rloo"'}
        trains = {"state": "training", "step": 0, "version": 0, "master_address": "127.0.0.1", "master_port": 1}
        await log.write(TRAINER_EVENTS, "trainer-0", TrainerHeartbeat(**TRAINER, **trains, settings=its))
        for step in (1, 2):
            places |= await _step(log, step)
        await _replay(log, places)
        await _evaluation(log)
        letter = b'{"task_id": "bad-1", "workflow": "math"'
        headers = {"dlq.reason": "not_json", "dlq.detail": HOSTILE, "dlq.topic": "tasks", "dlq.partition": "0"}
        told = [(name, value.encode()) for name, value in {**headers, "dlq.offset": "7"}.items()]
        await (await producer.send_raw(DEAD_LETTERS, "bad-1", letter, headers=told))
    return places


class _Writer:
    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def write(self, topic: Topic, key: str, record: object) -> Position:
        return await (await self._producer.send(topic, key, record))  # type: ignore[arg-type]


async def _step(log: _Writer, step: int) -> dict[str, Position]:
    batch_id = f"train-{step}"
    tasks = [f"task/{step}/{number}" for number in range(2)]
    places: dict[str, Position] = {}
    for task_id in tasks:
        places[task_id] = await _task(log, task_id, batch_id, step)
    await _batch(log, batch_id, BatchLifecycleState.RUNNING, tasks, places)
    await _batch(log, batch_id, BatchLifecycleState.FINALIZED, tasks, places)
    groups = [StepGroup(task_id=task_id, parts=[_part(places[task_id])]) for task_id in tasks]
    left_out = [LeftOut(task_id=tasks[1], reason="not_finite", samples=[3], detail=HOSTILE)]
    begun = StepBegun(
        **TRAINER,
        run="run",
        step=step,
        batch_id=batch_id,
        sequence=step,
        next_offset=1,
        groups=groups,
        left_out=left_out,
    )
    await log.write(STEPS, step_key("trainer-0", step), begun)
    if step == 1:
        await _figures(log, places[tasks[0]], {"trainer": "trainer-0", "run": "run", "step": step}, 0.25)
    metrics = {"loss": 0.5 / step, "entropy": 2.0, "tokens": 96.0, "seconds": 0.5, "reward_mean": 0.5, "groups": 2.0}
    address = {"master_address": "127.0.0.1", "master_port": 1}
    version = {"version": step, "step": step, "batch_id": batch_id, "checksum": "c" * 64, "seconds": 0.5}
    trained = StepTrained(**TRAINER, **address, **version, metrics=metrics, publish=True)
    await log.write(TRAINER_EVENTS, "trainer-0", trained)
    skipped = [SkippedBatch(batch_id="train-1", step=step, reason=HOSTILE)] if step == 2 else []
    published = PublishedVersion(
        model="policy",
        trainer="trainer-0",
        trainer_incarnation="t",
        **version,
        metrics=metrics,
        method="gloo",
        skipped=skipped,
    )
    await log.write(VERSION_HISTORY, f"policy/{step}", published)
    announced = ModelVersion(
        model="policy",
        version=step,
        step=step,
        method="gloo",
        epoch=step,
        trainer="trainer-0",
        trainer_incarnation="t",
        **address,
        checksum="c" * 64,
    )
    await log.write(MODEL_VERSIONS, "policy", announced)
    took = WeightsSynced(**WHO, model="policy", version=step, epoch=step, ok=True, transfer_s=0.1, pause_s=0.01)
    await log.write(EXPLORER_EVENTS, "explorer-0", took)
    return places


async def _replay(log: _Writer, places: dict[str, Position]) -> None:
    """The second step once more, with nothing left out."""
    tasks = [f"task/2/{number}" for number in range(2)]
    who = TRAINER | {"trainer": REPLAY, "follows": "trainer-0", "run": "other", "step": 2, "batch_id": "train-2"}
    groups = [StepGroup(task_id=task_id, parts=[_part(places[task_id])]) for task_id in tasks]
    begun = StepBegun(**who, sequence=2, next_offset=1, groups=groups)
    await log.write(STEPS, step_key(REPLAY, 2), begun)
    # Of groups that the live run has told nothing of; and of one, of more tokens than there are.
    replayed = {"trainer": REPLAY, "run": "other", "step": 2}
    await _figures(log, places[tasks[0]], replayed, 0.5)
    await _figures(log, places[tasks[1]], replayed, 0.5, longer=True)
    ended = StepEnded(**who, metrics={"loss": 0.125}, seconds=0.5)
    await log.write(STEPS, ended_key(REPLAY, 2), ended)


async def _figures(log: _Writer, place: Position, step: dict[str, Any], gap: float, *, longer: bool = False) -> None:
    """What a step tells of all tokens of a group but its last sample's: at each the same."""
    group = make_group(rewards=REWARDS)
    responses = (group.lengths - group.prompt_lengths + longer).tolist()[:-1]
    figures = TokenFigures(
        **step,
        task_id=FIRST_TASK,
        position=place,
        samples=list(range(len(REWARDS) - 1)),
        lengths=responses,
        updates_before=[0, 1, 0],
        gaps=np.full(sum(responses), gap, FLOAT16).tobytes(),
        entropies=np.full(sum(responses), 2 * gap, FLOAT16).tobytes(),
    )
    await log.write(TOKEN_FIGURES, FIRST_TASK, figures)


async def _task(log: _Writer, task_id: str, batch_id: str, version: int) -> Position:
    task = Task(task_id=task_id, workflow="math", prompt=f"What is this? {HOSTILE}", answer="42", batch_id=batch_id)
    await log.write(TASKS, task_id, task)
    order = Dispatch(
        **WHO, task=task, attempt=1, batch_id=batch_id, batch_type="train", repeat_times=len(REWARDS), timeout_s=60.0
    )
    await log.write(ROLLOUTS, "explorer-0", order)
    group = make_group(rewards=REWARDS, version=version - 1, task_id=task_id, batch_id=batch_id)
    place = await log.write(EXPERIENCES, task_id, group)
    finished = RolloutFinished(
        **WHO,
        task_id=task_id,
        attempt=1,
        batch_id=batch_id,
        batch_type="train",
        status="completed",
        completed_runs=len(REWARDS),
        total_runs=len(REWARDS),
        experience=place,
        samples=len(REWARDS),
    )
    await log.write(EXPLORER_EVENTS, "explorer-0", finished)
    result = TaskResult(
        task_id=task_id,
        batch_id=batch_id,
        batch_type="train",
        status="completed",
        completed_runs=len(REWARDS),
        total_runs=len(REWARDS),
        parts=[_part(place)],
        metrics={"reward": 0.5},
        attempts=1,
    )
    await log.write(RESULTS, task_id, result)
    return place


async def _batch(
    log: _Writer, batch_id: str, state: BatchLifecycleState, tasks: Sequence[str], places: dict[str, Position]
) -> None:
    done = state is BatchLifecycleState.FINALIZED
    entries = [ManifestEntry(task_id=task, status="completed", parts=[_part(places[task])]) for task in tasks]
    record = BatchRecord(
        batch_id=batch_id,
        batch_type="train",
        state=state,
        sequence=int(batch_id[-1]),
        expected_task_count=len(tasks),
        accepted_task_count=len(tasks),
        completed_task_count=len(tasks) if done else 0,
        manifest=entries if done else [],
        metrics={"rollout/reward/mean": 0.5} if done else {},
    )
    await log.write(BATCHES, batch_id, record)


async def _evaluation(log: _Writer) -> None:
    record = BatchRecord(
        batch_id="eval-after",
        batch_type="eval",
        state=BatchLifecycleState.FINALIZED,
        sequence=0,
        expected_task_count=1,
        min_version=2,
        metrics={"eval/held_out/reward/mean@1": 0.75},
    )
    await log.write(BATCHES, "eval-after", record)


def _part(place: Position) -> ResultPart:
    return ResultPart(attempt=1, samples=len(REWARDS), position=place)


def _coordinator() -> CoordinatorHeartbeat:
    return CoordinatorHeartbeat(
        coordinator="c-0",
        incarnation="i",
        open_batches=0,
        open_tasks=0,
        running_attempts=0,
        max_timeout_s=60.0,
        attempts_per_task=3,
        dynamic_timeout_s=60.0,
    )
