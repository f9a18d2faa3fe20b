from pathlib import Path
from typing import Any

import pytest

from schemas import (
    LeftOut,
    Position,
    ResultPart,
    StepBegun,
    StepEnded,
    StepGroup,
    StepTrained,
)
from tests.support.console.indexed import indexed
from tests.support.fakes.log_records import LogRecords, group
from tests.support.fakes.mesh_records import batch, step_trained
from tests.support.fakes.steps import begun_step
from tests.support.narrowing import some
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.store import Store
from trinity_bus.console.index.terms import SampleFilter, SamplePlace
from trinity_bus.coordination.events.versions import history_entry as entry

GROUPS = [
    StepGroup(task_id="copy-1", parts=[ResultPart(attempt=1, samples=2, position=Position(partition=0, offset=0))])
]

EXAMPLES: dict[str, Any] = {"groups": [], "next_offset": 0, "batch_id": "demonstrations-1"}


def begun(trainer: str, step: int, *, run: str = "r", **fields: Any) -> StepBegun:
    told = {"batch_id": f"train-{step}", "groups": GROUPS, **fields}
    return begun_step(step, trainer=trainer, run=run, **told)


def trained(step: int, loss: float, trainer: str = "trainer-0", **more: Any) -> StepTrained:
    told = {"batch_id": f"train-{step}", "metrics": {"loss": loss}, "seconds": 2}
    return step_trained(step, trainer=trainer, **told, **more)


@pytest.fixture
def log() -> LogRecords:
    """Two steps of a trainer, and the second one once more, as replays and shadows write it."""
    log = LogRecords()
    log.add(group("copy-1", [0.0, 1.0]), 90)
    for step in (1, 2):
        log.add(batch(f"train-{step}", sequence=step, metrics={"rollout/reward/mean": 0.5}), 99 + step)
        log.add(begun("trainer-0", step), 100 * step)
        log.add(trained(step, loss=0.5 / step), 100 * step + 1)
    left_out = [LeftOut(task_id="copy-1", reason="stale", samples=[1])]
    log.add(begun("replay-2", 2, run="s", follows="trainer-0", left_out=left_out), 300)
    return log


def test_a_replay_leaves_the_live_runs_steps_as_they_are(index: Index) -> None:
    assert [(row.step, row.trainer, row.trained_at, row.seconds) for row in index.steps().rows] == [
        (2, "trainer-0", 201, 2),
        (1, "trainer-0", 101, 2),
    ]
    step = some(index.step(2))
    assert (step.row.trainer, step.row.run, step.row.left_out, step.metrics) == ("trainer-0", "r", 0, {"loss": 0.25})
    (row,) = index.groups(SampleFilter(step=2)).rows
    assert row.task_id == "copy-1"
    assert [row.trained_as for row in index.batches().rows] == [2, 1]


def test_another_trainer_is_shown_where_it_is_asked_for_and_at_each_of_its_samples(index: Index) -> None:
    sample = some(index.sample(SamplePlace(0, 0, 1)))
    fates = [(fate.step.step, fate.step.trainer, fate.step.follows, fate.left_out) for fate in sample.fates]
    assert fates == [(1, "trainer-0", None, None), (2, "trainer-0", None, None), (2, "replay-2", "trainer-0", "stale")]
    assert sample.group.trained_in == [fate.step for fate in sample.fates]
    assert [(row.trainer, row.follows, row.step, row.last_at) for row in index.trainers()] == [
        ("trainer-0", None, 2, 201),
        ("replay-2", "trainer-0", 2, 300),
    ]
    assert [row.trainer for row in index.trainers(until=250)] == ["trainer-0"]
    (row,) = index.steps(trainer="replay-2").rows
    assert (row.step, row.follows, row.left_out, row.trained_at) == (2, "trainer-0", 1, None)
    assert len(index.samples(SampleFilter(step=2, trainer="replay-2")).rows) == 2
    assert (index.step(1, trainer="replay-2"), index.steps(trainer="nobody").rows) == (None, [])


def test_of_a_trainer_that_began_anew_the_last_run_is_shown(index: Index, store: Store, log: LogRecords) -> None:
    log.add(begun("trainer-0", 1, run="anew"), 400)
    log.add(trained(1, loss=9.0), 401)
    store.take(*log.take())
    assert [(row.step, row.run, row.trained_at) for row in index.steps().rows] == [(1, "anew", 401)]
    assert index.step(2) is None
    assert [point.value for point in index.metrics(["loss"])["loss"]] == [9.0]
    assert [row.step for row in index.steps(until=399).rows] == [2, 1]
    # What the run before had made of it leads nowhere.
    assert [(row.record.batch_id, row.trained_as) for row in index.batches().rows] == [
        ("train-2", None),
        ("train-1", 1),
    ]
    sample = some(index.sample(SamplePlace(0, 0, 1)))
    shown = [(1, "trainer-0"), (2, "replay-2")]
    assert [(fate.step.step, fate.step.trainer) for fate in sample.fates] == shown
    assert [(step.step, step.trainer) for step in sample.group.trained_in] == shown
    assert [row.trained_as for row in index.batches(until=399).rows] == [2, 1]


def test_a_stage_is_one_trainer_with_what_it_begins_and_what_it_trains(tmp_path: Path) -> None:
    log = LogRecords()
    log.add(begun("trainer-0/sft", 1, **EXAMPLES), 100)
    log.add(ended("trainer-0/sft", 1, 3.0, batch_id="demonstrations-1"), 101)
    log.add(begun("trainer-0/grpo", 1), 200)
    # The names that workers/trainer writes: see its VersionPublisher, and tests/unit/trainer/test_version_publisher.py.
    told = trained(1, 0.5, writer="trainer-0/grpo")
    log.add(told, 201)
    log.add(entry(told), 202)
    with indexed(tmp_path, log) as index:
        assert [row.trainer for row in index.trainers()] == ["trainer-0/grpo", "trainer-0/sft"]
        (step,) = index.steps().rows
        assert (step.trainer, step.groups, step.trained_at, step.seconds) == ("trainer-0/grpo", 1, 201, 2)
        assert [point.value for point in index.metrics(["loss"], trainer="trainer-0/grpo")["loss"]] == [0.5]
        (version,) = index.versions().rows
        assert index.step(version.record.step, trainer=version.record.trainer) is not None


def test_a_trainer_that_began_anew_many_times_leaves_room_for_others(tmp_path: Path) -> None:
    log = LogRecords()
    for number in range(510):
        log.add(begun("again", 1, run=f"run-{number}"), number)
    log.add(begun("trainer-0", 1), 600)
    with indexed(tmp_path, log) as index:
        assert [row.trainer for row in index.trainers()] == ["trainer-0", "again"]


def test_of_two_stages_the_one_that_spoke_last_is_shown(tmp_path: Path) -> None:
    log = LogRecords()
    log.add(begun("trainer-0/sft", 1, **EXAMPLES, examples=9), 100)
    log.add(begun("trainer-0/grpo", 1), 200)
    with indexed(tmp_path, log) as index:
        assert [row.trainer for row in index.trainers()] == ["trainer-0/grpo", "trainer-0/sft"]
        assert [row.trainer for row in index.steps().rows] == ["trainer-0/grpo"]
        assert [row.trainer for row in index.steps(until=150).rows] == ["trainer-0/sft"]


def ended(trainer: str, step: int, loss: float, **fields: Any) -> StepEnded:
    told = {"batch_id": f"train-{step}", "metrics": {"loss": loss}, "seconds": 3.0, **fields}
    return StepEnded(model="policy", incarnation="a", trainer=trainer, run="s", step=step, **told)


def test_steps_that_make_no_version_have_their_figures(index: Index, store: Store, log: LogRecords) -> None:
    log.add(ended("replay-2", 2, 7.0, follows="trainer-0"), 301)
    store.take(*log.take())
    step = some(index.step(2, trainer="replay-2"))
    assert (step.row.trained_at, step.row.seconds, step.metrics, step.checksum) == (301, 3.0, {"loss": 7.0}, None)
    both = ["loss", "rollout/reward/mean"]
    assert [[point.value for point in points] for points in index.metrics(both).values()] == [
        [0.5, 0.25],
        [0.5, 0.5],
    ]
    loss, reward = index.metrics(both, trainer="replay-2").values()
    assert [(point.x, point.value) for point in loss] == [(2, 7.0)]
    assert reward == [], "rewards of batches are the live run's"
    assert index.metrics(both[1:], trainer="replay-2", until=250) == {both[1]: []}, "also before it has begun"
    assert index.versions().rows == []


def test_a_run_of_examples_alone_has_its_charts(tmp_path: Path) -> None:
    log = LogRecords()
    for step in (1, 2):
        log.add(begun("trainer-0", step, run="s", **EXAMPLES | {"batch_id": f"demonstrations-{step}"}), 100 * step)
        log.add(ended("trainer-0", step, 1.0 / step, batch_id=f"demonstrations-{step}"), 100 * step + 1)
    with indexed(tmp_path, log) as index:
        assert [(row.step, row.trained_at) for row in index.steps().rows] == [(2, 201), (1, 101)]
        assert [point.value for point in index.metrics(["loss"])["loss"]] == [1.0, 0.5]
