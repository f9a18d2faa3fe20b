from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from schemas import ExplorerLeft, RunnersReport, RunnerState
from tests.support.fakes.mesh_records import (
    coordinator_beat,
    explorer_beat,
    published_version,
    step_trained,
    trainer_beat,
)
from trinity_bus.console.index.terms import ExplorerRow, Extent, Point, PublishedRow, StepRow, SyncRow, TrainerRow
from trinity_bus.console.web.overview import REWARD, Overview, Past, alerts, waiting
from trinity_bus.view import MeshState


def step(number: int, seconds: float = 1.0) -> StepRow:
    return StepRow(
        step=number, model="policy", trainer="trainer-0", run="r", batch_id=f"b{number}", sequence=number,
        begun_at=100.0 + 2 * number, trained_at=101.0 + 2 * number, seconds=seconds, groups=4, samples=16, left_out=0,
        replayed=0, examples=0, skipped=None, follows=None, reward=0.1 * number,
    )  # fmt: skip


def past(numbers: Sequence[int] = range(1, 6)) -> Past:
    points = [Point(float(n), 0.1 * n, 1) for n in numbers]
    times = [Point(100.0 + 2 * n, 64.0, 1) for n in numbers]
    return Past(
        extent=Extent(100.0, 120.0, 80, 2),
        by_step={REWARD: points, "loss": points, "eval/held/reward/mean@1": points},
        by_time={"seconds": times, "tokens": times},
        steps=[step(n) for n in reversed(numbers)],
        versions=[],
        syncs=[],
        fleet=[ExplorerRow("gone", 60.0, "ready", 3, 8, 4, None, None)],
    )


def figures(found: Overview) -> dict[str, str]:
    return {one.name: one.value for one in found.figures}


def test_the_past_has_what_was_there_then_and_who_was_heard() -> None:
    found = Overview(past(), None, {"tasks": 3})
    told = figures(found)
    assert (told["step"], told["reward"], told["samples"]) == ("5", "0.5", "80")
    assert (told["explorers"], told["attempts running"]) == ("1", "4")
    assert (found.lag, found.alerts) == ({}, [])
    assert told["held-out reward"] == "0.5"
    assert [(row.name, row.version, row.heard) for row in found.fleet] == [("gone", "3", "60 s before")]


def test_what_was_wrong_at_an_earlier_moment_is_told_as_far_as_the_index_has_it() -> None:
    rows = [
        ExplorerRow(name, at, "ready", 3, 8, 4, 50.0, None) for name, at in (("a", 870.0), ("b", 700.0), ("c", 1.0))
    ]
    then = replace(
        past(),
        extent=Extent(0.0, 900.0, 80, 2),
        fleet=rows,
        metrics={"groups": 10.0, "groups_skipped": 9.0},
    )
    found = Overview(then, None, {})
    assert [one.text for one in found.alerts] == [
        "not heard for over a minute, gone or lost: b",
        "step 5: 9 of 10 groups teach nothing",
    ]
    told = figures(found)
    assert (told["tokens/s"], told["explorers"]) == ("50", "1")


def test_charts_have_a_line_for_each_evaluation_and_versions_one_axis_with_who_took_them() -> None:
    lines = {chart.title: chart.lines for chart in Overview(past(), MeshState(), {}).charts}
    assert [line.name for line in lines["reward"]] == ["training", "held"]
    assert lines["tokens/s that were trained on, by minute of the run"][0].points[0][1] == 32
    assert lines["entropy, nats"] == []
    version = PublishedRow(published_version(3), 103.0, announced=True, pinned=False, synced=1, skipped=[])
    syncs = [SyncRow(104.0, "e", 3, True, 0.5, 0.25), SyncRow(105.0, "f", 3, False, 0.0, 0.0)]
    assert Overview(replace(past(), versions=[version], syncs=syncs), None, {}).syncs == [
        ("published", [(103.0, "version 3 was published, step 3")]),
        ("e", [(104.0, "took version 3: 0.50 s, generation stood still for 0.25 s")]),
        ("f", [(105.0, "did not take version 3")]),
    ]


def test_of_a_run_that_has_ended_nobody_is_missing() -> None:
    state = MeshState()
    for name in ("here", "gone"):
        state.apply(explorer_beat(name), 100)
    state.apply(coordinator_beat(), 107)
    state.apply(ExplorerLeft(explorer="here", incarnation="a"), 108)
    assert Overview(None, state, {}).ended == ""
    state.tick(900)
    found = Overview(past(), state, {})
    assert found.ended.startswith("The run has ended: nobody has spoken since 1970-01-01 00:01:47 UTC, 13 min ago.")
    assert "gone did not say so" in found.ended
    assert found.alerts == []
    assert [(row.name, row.heard) for row in found.fleet] == [
        ("gone", "7 s before the end"),
        ("here", "7 s before the end"),
    ]
    assert "tokens/s" not in figures(found)
    assert "heard last: c at the end." in found.ended
    assert Overview(None, state, {}, is_record=True).ended.startswith("This is a record of a run")


def test_while_nobody_can_be_heard_or_somebody_trains_on_nothing_has_ended() -> None:
    state = MeshState()
    state.apply(coordinator_beat(), 100)
    state.apply(explorer_beat("gone"), 100)
    state.tick(400)
    told = ["no coordinator has spoken for 5 min", "lost: gone"]
    stage = TrainerRow("trainer-0/sft", None, 7, 390.0)
    shadow = TrainerRow("shadow", "trainer-0", 7, 90.0)
    for found in (
        Overview(past(), state, {}, is_away=True),
        Overview(replace(past(), trainers=[stage]), state, {}),
        Overview(replace(past(), trainers=[shadow]), state, {}),
    ):
        assert (found.ended, [one.text for one in found.alerts]) == ("", told)
    state.tick(4000)
    assert Overview(replace(past(), trainers=[stage, shadow]), state, {}).ended


def test_the_last_word_of_a_trainer_with_heartbeats_is_part_of_the_end() -> None:
    state = MeshState()
    state.apply(trainer_beat(), 100)
    state.tick(200)
    live = TrainerRow("trainer-0", None, 7, 102.0)
    found = Overview(replace(past(), trainers=[live]), state, {})
    assert "heard last: trainer-0 at the end" in found.ended


def test_runners_are_counted() -> None:
    state = MeshState()
    state.apply(explorer_beat("a"), 100)
    runners = [RunnerState(runner=f"a/{n}", state="busy" if n else "idle", pid=n, restarts=n) for n in range(3)]
    state.apply(RunnersReport(explorer="a", incarnation="a", runners=runners), 100)
    found = Overview(None, state, {})
    assert [row.runners for row in found.fleet] == ["2 of 3 busy, 3 restarted"]
    assert figures(found)["runners busy"] == "2/3"


def test_an_empty_mesh_and_a_step_without_rewards_have_a_page() -> None:
    found = Overview(None, MeshState(), {})
    assert found.figures[0].name == "tokens/s"
    assert (found.alerts, found.fleet, found.charts, found.waiting) == ([], [], [], "")
    without = replace(past(), steps=[structs.replace(step(6), reward=None)])
    assert figures(Overview(without, None, {}))["reward"] == "none"


def test_what_is_wrong_is_told_and_a_step_of_nothing() -> None:
    state = MeshState()
    state.apply(step_trained(metrics={"groups": 0.0, "groups_skipped": 0.0}), 100)
    assert [one.text for one in Overview(None, state, {}).alerts][-1:] == [
        "step 1 trained on nothing: every task of its batch failed, or it was passed over"
    ]
    # Of demonstrations there are no groups.
    state.apply(step_trained(metrics={"groups": 0.0, "trained_tokens": 9.0}), 101)
    assert not any("on nothing" in one.text for one in Overview(None, state, {}).alerts)
    state = MeshState()
    state.apply(step_trained(metrics={"groups": 10.0, "groups_skipped": 9.0, "updates_skipped_in_a_row": 2.0}), 100)
    state.apply(explorer_beat("gone"), 100)
    state.apply(coordinator_beat(), 100)
    # Somebody still speaks.
    state.apply(explorer_beat("here"), 300)
    state.tick(300)
    told = " | ".join(alert.text for alert in alerts(state, {"tasks": 20_000}))
    for part in ("no coordinator", "lost: gone", "20,000 records of tasks", "9 of 10 groups", "not finite"):
        assert part in told


@pytest.mark.parametrize(
    ("seconds", "told"), [(1.95, "explorers wait for the trainer"), (0.2, "waits for rollouts"), (1.4, "take turns")]
)
def test_who_waits_for_whom(seconds: float, told: str) -> None:
    assert told in waiting([step(number, seconds) for number in range(8, 0, -1)])
    assert waiting([step(1)]) == ""
