from typing import Any

import pytest
from rich.console import Console

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    ExplorerLeft,
    PublishedVersion,
    StepTrained,
    VersionWanted,
    WeightsSynced,
)
from schemas.event import EngineMember
from schemas.record import Metrics
from tests.support.fakes import mesh_records
from tests.support.fakes.announcements import announced
from tests.support.fakes.mesh_records import (
    explorer_beat,
    published_version,
    rollout_finished,
    step_trained,
    trainer_beat,
    weights_synced,
)
from trinity_bus.rollout.metrics import reward_of
from trinity_bus.view import MeshState
from trinity_bus.view.state import ALIVE_S
from workers.cli.training.versions import table
from workers.watch import mesh, sparkline

State = BatchLifecycleState


def batch(state: BatchLifecycleState, *, sequence: int = 1, reward: float | None = None) -> BatchRecord:
    metrics = {} if reward is None else {"rollout/reward/mean": reward}
    return mesh_records.batch(f"b{sequence}", state, sequence=sequence, expected_task_count=4, metrics=metrics)


def trained(step: int, batch_id: str | None) -> StepTrained:
    return step_trained(step, batch_id=batch_id, metrics={"loss": 0.5}, seconds=0.4)


def synced(name: str, version: int, error: str | None = None) -> WeightsSynced:
    return weights_synced(name, version, ok=error is None, checksum="c" * 64, error=error)


def published(version: int, **changes: Any) -> PublishedVersion:
    own = {"checksum": f"{version:064d}", "checkpoint": f"/checkpoints/step-{version:08d}"}
    return published_version(version, metrics={"loss": 0.25, "reward_mean": 0.75}, **own, **changes)


def view(*records: object, at: float = 100.0) -> MeshState:
    made = MeshState("policy")
    for record in records:
        made.apply(record, at)
    return made


def printed(what: Any, width: int = 120) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_a_batch_is_followed_from_running_to_its_reward() -> None:
    view = MeshState()
    view.apply(batch(State.PENDING), 1.0)
    view.apply(batch(State.RUNNING), 2.0)
    assert view.states == {"running": 1}
    view.apply(batch(State.FINALIZED, reward=0.25), 3.5)
    assert view.states == {"finalized": 1}
    assert (view.batches["b1"].running_at, view.batches["b1"].finalized_at) == (2.0, 3.5)
    assert view.batches["b1"].reward == 0.25


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_step_finds_its_reward_in_whatever_order_the_topics_are_read(batch_first: bool) -> None:
    view = MeshState()
    finalized, step = batch(State.FINALIZED, reward=0.25), trained(1, "b1")
    for record in (finalized, step) if batch_first else (step, finalized):
        view.apply(record, 1.0)
    (found,) = view.trained
    assert view.reward(found) == 0.25


def test_a_start_is_no_step_and_what_is_none_of_its_business_changes_the_time_alone() -> None:
    view = MeshState()
    view.apply(trained(0, None), 1.0)
    assert view.trained == []
    view = MeshState()
    view.apply(object(), 5.0)
    expected = MeshState()
    expected.tick(5.0)
    assert view == expected


def test_tokens_per_second_are_those_of_the_last_seconds_of_this_life() -> None:
    view = MeshState()
    for second in range(20):
        view.apply(explorer_beat(tokens_generated=second * second), float(second))
    assert view.explorers["explorer-0"].tokens_per_s == pytest.approx((19**2 - 14**2) / 5)
    view.apply(explorer_beat(incarnation="b", tokens_generated=3), 20.0)
    assert view.tokens_per_s == 0.0


def test_explorers_that_left_or_fell_silent_are_not_alive_and_serve_nothing() -> None:
    names = ("explorer-0", "explorer-1", "explorer-2")
    seen = view(*(explorer_beat(name, model_version=0) for name in names), at=0.0)
    seen.apply(ExplorerLeft(explorer="explorer-0", incarnation="a"), 1.0)
    seen.apply(ExplorerLeft(explorer="explorer-1", incarnation="another-life"), 1.0)
    assert seen.explorer_states() == {"ready": 2}
    seen.apply(explorer_beat("explorer-2", model_version=0), ALIVE_S + 1)
    assert [e.name for e in seen.alive()] == seen.serving(0) == ["explorer-2"]
    assert seen.explorer_states() == {"ready": 1, "stopped": 1}
    assert seen.explorers["explorer-1"].state == "ready"


def test_a_sync_is_known_before_its_step_and_its_explorer_are() -> None:
    view = MeshState()
    view.apply(synced("explorer-0", 1), 2.0)
    view.apply(explorer_beat(model_version=0), 1.0)
    view.apply(trained(1, "b1"), 1.5)
    assert view.synced(1)["explorer-0"].checksum == view.trained[0].checksum
    view.apply(synced("explorer-0", 1), 2.0)
    assert view.serving(1) == ["explorer-0"]
    assert view.explorers["explorer-0"].syncs == 1


def test_failures_are_kept_for_people() -> None:
    view = MeshState()
    view.apply(explorer_beat(), 0.0)
    view.apply(synced("explorer-0", 1, "link broke"), 1.0)
    failed = {"status": "failed", "completed_runs": 0, "error": "WorkflowError: no answer"}
    view.apply(rollout_finished("t1", **failed), 2.0)
    assert view.errors == [
        "explorer-0 did not take version 1: link broke",
        "explorer-0, task t1: WorkflowError: no answer",
    ]
    assert view.explorers["explorer-0"].sync_failures == 1
    assert view.rollouts == {"failed": 1}
    assert view.synced(1) == {}


@pytest.mark.parametrize(
    ("metrics", "reward"),
    [
        ({"rollout/reward/mean": 0.5, "rollout/reward/max": 1.0}, 0.5),
        ({"eval/held-out/exact/mean@1": 0.1, "eval/held-out/reward/mean@1": 0.2}, 0.2),
        ({"rollout/finished_task_count": 3.0}, None),
        ({}, None),
    ],
)
def test_the_reward_among_the_metrics(metrics: Metrics, reward: float | None) -> None:
    assert reward_of(metrics) == reward


def test_a_whole_view_can_be_printed_and_nothing_off_the_wire_is_markup() -> None:
    view = MeshState()
    servers = [EngineMember(address="a:1", state="serving", model_version=1), EngineMember(address="b:1", state="gone")]
    view.apply(explorer_beat(members=servers), 0.0)
    view.apply(batch(State.FINALIZED, reward=0.25), 1.0)
    view.apply(trained(1, "b1"), 1.0)
    view.apply(announced(1, "explorer-0"), 1.0)
    view.apply(synced("explorer-0", 1, "[bold]not markup[/]"), 1.0)
    text = printed(mesh(view, {"tasks": 3, "explorer-events": 0}))
    for part in ("explorer-0", "b1", "0.250", "version 1, epoch 1, gloo", "3 tasks", "[bold]not markup[/]", "step 1"):
        assert part in text
    assert "1 (1 of 2)" in text


def test_sparklines_have_a_bar_for_each_value_and_at_most_the_width() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([-1.0, 0.0, 0.5, 1.0, 2.0], 10) == "▁▁▅██"
    assert sparkline([0.0, 0.0, 1.0, 1.0], 2) == "▁█"
    assert len(sparkline([0.5] * 1000, 37)) == 37


def test_versions_are_listed_with_who_serves_them() -> None:
    seen = view(
        published(2),
        published(1),
        published(7, model="other"),
        announced(1, pinned=True),
        explorer_beat("e0", model_version=1),
        explorer_beat("e1", model_version=2),
    )
    rows = seen.versions()
    assert [(row.record.version, row.served_by, row.announced, row.pinned) for row in rows] == [
        (1, ["e0"], True, True),
        (2, ["e1"], False, False),
    ]


def test_an_answer_counts_before_the_next_heartbeat_and_a_failure_does_not() -> None:
    seen = view(explorer_beat("e0", model_version=1), weights_synced("e0", 2))
    assert seen.serving(2) == ["e0"]
    seen.apply(weights_synced("e0", 3, ok=False), 100.0)
    seen.apply(weights_synced("e0", 3, incarnation="before"), 100.0)
    assert seen.serving(2) == ["e0"]


def test_the_trainer_lives_as_long_as_it_speaks() -> None:
    seen = view(trainer_beat(), VersionWanted(model="policy", at_least=3), VersionWanted(model="policy", version=1))
    seen.tick(105.0)
    assert seen.trainer_is_alive
    seen.tick(100.0 + ALIVE_S + 1)
    assert not seen.trainer_is_alive
    assert seen.wanted == 3


def test_the_table_shows_the_newest_and_what_is_served() -> None:
    seen = view(
        *(published(version) for version in range(10)),
        announced(3, pinned=True),
        explorer_beat("e0", model_version=3),
        explorer_beat("e1", model_version=5),
    )
    text = printed(table(seen.versions(), last=2), 200)
    shown = [line.strip("│ ").split()[0] for line in text.splitlines() if "/checkpoints/" in line]
    assert shown == ["3", "5", "8", "9"]
    assert "3 pinned" in text
    assert "0.75" in text
