"""A small log as a mesh leaves it, written by a test: two steps, the second once more, one evaluation, a dead letter,
hostile text.

What a model would have written stands in ids and metrics, too: all of it may be hostile.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from benchmarks._records import completed, trainer_beat
from schemas import (
    BatchLifecycleState,
    ManifestEntry,
    Position,
    SkippedBatch,
    Task,
    TokenFigures,
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
from tests.support.fakes.announcements import announced
from tests.support.fakes.experiences import make_group
from tests.support.fakes.mesh_records import (
    batch,
    coordinator_beat,
    dispatch,
    explorer_beat,
    published_version,
    step_trained,
    task_result,
    weights_synced,
)
from tests.support.fakes.steps import begun_step
from trinity_bus.bus import Bus, Producer

HOSTILE: Final = "<script>alert(1)</script>"
REWARDS: Final = (0.67, 0.0, 1.0, 0.33)
SAMPLES: Final = 2 * 2 * len(REWARDS)
FIRST_TASK: Final = "task/1/0"
WHO: Final = {"explorer": "explorer-0", "incarnation": "a"}
SETTINGS: Final = {"explorer.temperature": "0.7", "explorer.workflow_modules": f'"{HOSTILE}"', "explorer.slots": ""}
REPLAY: Final = "replay-2"


async def write_small_log(bus: Bus) -> dict[str, Position]:
    """Write it; where each task's experiences lie."""
    async with bus.producer() as producer:
        log = _Writer(producer)
        places: dict[str, Position] = {}
        beat = explorer_beat(model_version=2, tokens_generated=100, settings=SETTINGS)
        await log.write(EXPLORER_EVENTS, "explorer-0", beat)
        limits = {"max_timeout_s": 60.0, "attempts_per_task": 3, "dynamic_timeout_s": 60.0}
        await log.write(COORDINATOR_EVENTS, "c-0", coordinator_beat(coordinator="c-0", **limits))
        training = trainer_beat(0, "t", state="training", settings={"trainer.advantage": '"rloo"'})
        await log.write(TRAINER_EVENTS, "trainer-0", training)
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
    begun = begun_step(
        step, incarnation="t", run="run", batch_id=batch_id, next_offset=1, groups=groups, left_out=left_out
    )
    await log.write(STEPS, step_key("trainer-0", step), begun)
    if step == 1:
        await _figures(log, places[tasks[0]], {"trainer": "trainer-0", "run": "run", "step": step}, 0.25)
    metrics = {"loss": 0.5 / step, "entropy": 2.0, "tokens": 96.0, "seconds": 0.5, "reward_mean": 0.5, "groups": 2.0}
    version: dict[str, Any] = {"version": step, "step": step, "batch_id": batch_id, "checksum": "c" * 64}
    version["seconds"] = 0.5
    trained = step_trained(incarnation="t", metrics=metrics, **version)
    await log.write(TRAINER_EVENTS, "trainer-0", trained)
    skipped = [SkippedBatch(batch_id="train-1", step=step, reason=HOSTILE)] if step == 2 else []
    published = published_version(metrics=metrics, skipped=skipped, **version)
    await log.write(VERSION_HISTORY, f"policy/{step}", published)
    news = announced(step, epoch=step, trainer_incarnation="t", checksum="c" * 64)
    await log.write(MODEL_VERSIONS, "policy", news)
    took = weights_synced("explorer-0", step, epoch=step, transfer_s=0.1, pause_s=0.01)
    await log.write(EXPLORER_EVENTS, "explorer-0", took)
    return places


async def _replay(log: _Writer, places: dict[str, Position]) -> None:
    """The second step once more, with nothing left out."""
    tasks = [f"task/2/{number}" for number in range(2)]
    who: dict[str, Any] = {"trainer": REPLAY, "incarnation": "t", "follows": "trainer-0", "run": "other"}
    who |= {"model": "policy", "step": 2, "batch_id": "train-2"}
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
    runs = len(REWARDS)
    order = dispatch(task=task, **WHO, attempt=1, batch_id=batch_id, repeat_times=runs, timeout_s=60)
    await log.write(ROLLOUTS, "explorer-0", order)
    group = make_group(rewards=REWARDS, version=version - 1, task_id=task_id, batch_id=batch_id)
    place = await log.write(EXPERIENCES, task_id, group)
    finished = completed(order, version=-1, seconds=0, metrics=[], experience=place)
    await log.write(EXPLORER_EVENTS, "explorer-0", finished)
    done = {"batch_id": batch_id, "completed_runs": runs, "total_runs": runs, "metrics": {"reward": 0.5}}
    result = task_result(task_id, parts=[_part(place)], **done)
    await log.write(RESULTS, task_id, result)
    return place


async def _batch(
    log: _Writer, batch_id: str, state: BatchLifecycleState, tasks: Sequence[str], places: dict[str, Position]
) -> None:
    done = state is BatchLifecycleState.FINALIZED
    entries = [ManifestEntry(task_id=task, status="completed", parts=[_part(places[task])]) for task in tasks]
    record = batch(
        batch_id,
        state,
        sequence=int(batch_id[-1]),
        **dict.fromkeys(("expected_task_count", "accepted_task_count"), len(tasks)),
        completed_task_count=len(tasks) if done else 0,
        manifest=entries if done else [],
        metrics={"rollout/reward/mean": 0.5} if done else {},
    )
    await log.write(BATCHES, batch_id, record)


async def _evaluation(log: _Writer) -> None:
    metrics = {"eval/held_out/reward/mean@1": 0.75}
    told: dict[str, Any] = {"batch_type": "eval", "sequence": 0, "expected_task_count": 1, "min_version": 2}
    record = batch("eval-after", metrics=metrics, **told)
    await log.write(BATCHES, "eval-after", record)


def _part(place: Position) -> ResultPart:
    return ResultPart(attempt=1, samples=len(REWARDS), position=place)
