"""Single decisions of the machine, one scenario each."""

from typing import Any

import pytest

from schemas import (
    Cancel,
    Dispatch,
    ExplorerLeft,
    RunningAttempt,
    Sampling,
    SetPace,
    Superseded,
    Task,
    TrainerHeartbeat,
)
from schemas.batch import escaped
from schemas.errors import RecordError
from tests.support.simulation.harness import (
    TRACE,
    Harness,
    announced,
    answers,
    batches,
    cancels,
    dispatches,
    facts,
    groups,
    refusals,
)
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import CoordinatorMachine, Effect, Fact, RejectTask, StateError, Tick, Write
from trinity_bus.coordination.batches.accounts import Counters
from trinity_bus.coordination.dispatch.fleet import GONE_KEPT
from trinity_bus.coordination.state.codec import StateCodec, unpack

pack = StateCodec().pack


def test_a_batch_from_its_first_task_to_its_manifest() -> None:
    harness = Harness().begun()
    assert [b.state for b in batches(harness.task("a"))] == ["pending"]
    started = harness.task("b", repeat_times=3, timeout_s=7.0)
    assert [b.state for b in batches(started)] == ["running"]
    assert [(d.task.task_id, d.repeat_times, d.timeout_s, d.min_version) for d in dispatches(started)] == [
        ("a", 8, 300.0, 0),
        ("b", 3, 7.0, 0),
    ]
    assert all(
        c.traceparent == TRACE for c in started if isinstance(c, Write) and isinstance(c.record, Dispatch | Cancel)
    )
    assert batches(harness.finished("b")) == []
    ended = batches(harness.finished("a"))
    assert [b.state for b in ended] == ["finalizing", "finalized"]
    assert [e.task_id for e in ended[1].manifest] == ["a", "b"], "in the order of acceptance"
    spread = {"reward": 0.5, "time/task_execution": 3.0}
    assert ended[1].metrics == {
        **{f"rollout/{name}/{stat}": value for name, value in spread.items() for stat in ("mean", "max", "min")},
        "rollout/finished_task_count": 2.0,
        "rollout/failed_task_count": 0.0,
        "experience_pipeline/experience_count": 4.0,
    }
    assert ended[1].trace_links == [TRACE]


@pytest.mark.parametrize("name", ["held-out", "held out"])
@pytest.mark.parametrize(
    ("detailed", "expected"), [(False, {"": 0.75}), (True, {"/mean": 0.75, "/max": 1.0, "/min": 0.5, "/std": 0.25})]
)
def test_evaluation_tells_the_spread_over_tasks_where_a_setting_says_so(
    detailed: bool, expected: dict[str, float], name: str
) -> None:
    harness, batch_id = Harness(detailed_eval_stats=detailed).begun(), escaped(f"1/{name}")
    for task in "ab":
        harness.task(task, batch_id=batch_id, batch_type="eval", batch_size=2)
    for task, score in (("a", 0.5), ("b", 1.0)):
        of: dict[str, Any] = {"batch_type": "eval", "experience": None, "samples": 0, "metrics": [{"score": score}]}
        effects = harness.finished(task, batch_id=batch_id, **of)
    ended = batches(effects)[-1]
    found = {metric: value for metric, value in ended.metrics.items() if "score/mean@1" in metric}
    assert found == {f"eval/{name}/score/mean@1{stat}": value for stat, value in expected.items()}
    assert ended.metrics[f"eval/{name}/finished_task_count"] == 2.0
    assert (ended.sequence, ended.manifest[0].parts[0].position) == (0, None)
    assert not [metric for metric in ended.metrics if "experience_count" in metric]


def test_no_more_train_batches_are_open_than_allowed_and_evaluation_does_not_count() -> None:
    harness = Harness(batch_size=1, max_inflight_batches=1, max_staleness=5).begun()
    assert dispatches(harness.task("a"))
    assert not dispatches(harness.task("b"))
    assert [d.task.task_id for d in dispatches(harness.task("e", batch_type="eval"))] == ["e"]
    assert [d.task.task_id for d in dispatches(harness.finished("a"))] == ["b"]


@pytest.mark.parametrize(
    ("first", "second", "refusal"),
    [
        ({}, {"task_id": "first"}, "duplicate_task"),
        ({}, {"workflow": "nobody-has-it"}, "unknown_workflow"),
        ({"batch_id": "b"}, {"batch_id": "b", "batch_type": "eval"}, "batch_mismatch"),
        ({"batch_id": "b"}, {"batch_id": "b", "batch_size": 3}, "batch_mismatch"),
        ({"batch_id": "b", "batch_size": 1}, {"batch_id": "b", "batch_size": 1}, "batch_full"),
        ({}, {"batch_id": "b", "batch_size": 20_000}, "batch_too_large"),
    ],
)
def test_tasks_that_are_refused(first: dict[str, Any], second: dict[str, Any], refusal: str) -> None:
    harness = Harness().begun(slots=1)
    assert refusals(harness.task("first", **first)) == []
    before = dict(harness.store)
    assert refusals(harness.task(second.pop("task_id", "second"), **second)) == [refusal]
    assert harness.store == before, "a refused task leaves no trace"


def test_ids_of_ended_tasks_and_batches_are_not_taken_again() -> None:
    harness = Harness(batch_size=1).begun()
    harness.task("a", batch_id="b")
    harness.finished("a")
    for _ in range(2):
        assert refusals(harness.task("a")) == ["duplicate_task"]
        assert refusals(harness.task("c", batch_id="b")) == ["batch_closed"]
        harness.restart()


def test_a_workflow_is_judged_only_when_somebody_could_know_it() -> None:
    harness = Harness(batch_size=1)
    assert refusals(harness.task("early", workflow="strange")) == []
    harness.beat(state="starting", workflows=[])
    assert harness.machine.ledger.tasks
    effects = harness.beat()
    assert refusals(effects) == ["unknown_workflow"]
    (entry,) = batches(effects)[-1].manifest
    assert "no explorer has a workflow 'strange'; known are math" in (entry.error or "")


def test_a_task_that_nobody_can_run_does_not_keep_its_named_batch_from_ending() -> None:
    harness = Harness().begun()
    harness.task("good", batch_id="b", batch_size=2)
    effects = harness.task("bad", batch_id="b", batch_size=2, workflow="strange")
    assert refusals(effects) == ["unknown_workflow"]
    ended = batches(harness.finished("good"))[-1]
    assert [entry.status for entry in ended.manifest] == ["completed", "failed"]
    assert "no explorer has a workflow 'strange'" in (ended.manifest[1].error or "")


def test_tasks_for_an_explorer_that_restarts_wait_for_it() -> None:
    harness = Harness(batch_size=1)
    harness.beat("e0")
    harness.beat("e1", workflows=["rare"])
    harness.event(ExplorerLeft(explorer="e1", incarnation="1"))
    assert refusals(harness.task("a", workflow="rare")) == []
    assert dispatches(harness.beat("e1", incarnation="2", workflows=["rare"]))


def test_reading_stops_at_the_limit_unless_more_tasks_are_what_it_takes() -> None:
    harness = Harness(batch_size=2, max_open_tasks=3)
    for number in range(4):
        assert harness.machine.wants_tasks()
        harness.task(f"t{number}", batch_id=f"b{number}")
    assert harness.machine.wants_tasks(), "no batch is full: only more tasks help"
    harness.task("t4", batch_id="b0")
    assert harness.machine.wants_tasks(), "two tasks can go on, and three may be open"
    harness.task("t5", batch_id="b1")
    assert not harness.machine.wants_tasks()
    harness.restart()
    assert not harness.machine.wants_tasks()


def test_a_failed_attempt_goes_elsewhere_and_the_first_error_is_told_in_the_end() -> None:
    harness = Harness(batch_size=1)
    harness.beat("e0")
    harness.beat("e1")
    (first,) = dispatches(harness.task("a"))
    retried = harness.finished("a", status="failed", completed_runs=0, error="ValueError: first")
    assert [(d.explorer, d.attempt) for d in dispatches(retried)] == [("e1", 2)]
    assert first.explorer == "e0"
    ended = harness.finished("a", name="e1", attempt=2, status="failed", completed_runs=0, error="KeyError: second")
    (entry,) = batches(ended)[-1].manifest
    assert (entry.error, entry.status, entry.parts) == ("ValueError: first", "failed", [])
    final = batches(ended)[-1]
    assert final.failed_task_count == 1
    assert "rollout/reward/mean" not in final.metrics, "a failure is not a reward of zero"
    assert final.trace_links == []


def test_a_failed_task_tells_how_long_its_attempts_took() -> None:
    harness = Harness(batch_size=1, max_attempts=2, task_timeout_s=4.0, explorer_timeout_s=1000).begun("a")
    harness.finished("a", status="failed", error="ValueError: no", metrics=[], seconds=3.0)
    harness.restart()
    (result,) = answers(harness.wait(5))
    assert (result.status, result.metrics) == ("failed", {"time/task_execution": 7.0}), "the second was out of time"
    harness.task("b", batch_id="1/e", batch_type="eval", batch_size=1)
    for attempt in (1, 2):
        fields: dict[str, Any] = {"status": "failed", "batch_type": "eval", "metrics": []}
        ended = harness.finished("b", attempt=attempt, seconds=1.0, **fields)
    assert batches(ended)[-1].metrics["eval/e/time/task_execution"] == 2.0


@pytest.mark.parametrize("fields", [{"experience": None}, {"samples": 0}, {"completed_runs": 0}, {"version_min": -1}])
def test_a_train_result_that_cannot_be_trained_on_is_a_failure(fields: dict[str, Any]) -> None:
    harness = Harness(batch_size=1).begun("a")
    assert Fact.ATTEMPT_FAILED in facts(harness.finished("a", **fields))


def test_an_attempt_out_of_time_is_cancelled_and_its_late_result_ignored() -> None:
    harness = Harness(batch_size=1, task_timeout_s=5, explorer_timeout_s=100).begun("a")
    late = harness.wait(6)
    assert [(c.task_id, c.attempt) for c in cancels(late)] == [("a", 1)]
    assert [d.attempt for d in dispatches(late)] == [2]
    orders = [c.record for c in late if isinstance(c, Write) and isinstance(c.record, Dispatch | Cancel)]
    assert isinstance(orders[0], Cancel), "the lane's order frees the slot before it is taken again"
    assert facts(harness.finished("a", attempt=1)) == [Fact.LATE_RESULT]
    assert batches(harness.finished("a", attempt=2))[-1].manifest[0].parts[0].attempt == 2
    assert facts(harness.finished("a", attempt=2)) == [Fact.LATE_RESULT]


def test_a_silent_explorer_loses_its_tasks_and_may_come_back() -> None:
    harness = Harness(batch_size=1)
    harness.beat("e0")
    harness.task("a")
    harness.beat("e1")
    effects: list[Effect] = []
    while Fact.EXPLORER_LOST not in facts(effects):
        assert harness.now < 12
        effects = harness.wait(1)
        harness.beat("e1")
    assert harness.now > 10
    assert [(d.explorer, d.attempt) for d in dispatches(effects)] == [("e1", 2)]
    assert [(c.explorer, c.attempt) for c in cancels(effects)] == [("e0", 1)]
    assert facts(harness.finished("a", name="e0")) == [Fact.LATE_RESULT]
    assert Fact.EXPLORER_JOINED in facts(harness.beat("e0"))


def test_a_new_life_ends_the_old_one_for_good() -> None:
    harness = Harness(batch_size=1)
    harness.beat(incarnation="1")
    harness.task("a")
    effects = harness.beat(incarnation="2")
    assert [c.incarnation for c in cancels(effects)] == ["1"]
    assert [(d.incarnation, d.attempt) for d in dispatches(effects)] == [("2", 2)]
    assert facts(harness.beat(incarnation="1")) == [Fact.ZOMBIE_EXPLORER]
    assert facts(harness.event(ExplorerLeft(explorer="e0", incarnation="1"))) == [Fact.ZOMBIE_EXPLORER]
    assert harness.machine.fleet.find("e0", "2") is not None


def test_each_life_is_told_in_its_own_lane() -> None:
    def lanes(effects: list[Effect]) -> list[tuple[str, int | None]]:
        return [
            (one.record.incarnation, one.lane)
            for one in effects
            if isinstance(one, Write) and isinstance(one.record, Dispatch | Cancel | SetPace | Superseded)
        ]

    harness = Harness(batch_size=1, max_staleness=9)
    harness.beat(incarnation="1", lane=3)
    assert lanes(harness.task("a")) == [("1", 3)]
    assert lanes(harness.beat(incarnation="2", lane=20, pace_s=5.0)) == [("1", 3), ("2", 20), ("2", 20)]
    assert lanes(harness.beat(incarnation="1", lane=3)) == [("1", 3)], "it is to end"
    harness.restart()
    assert lanes(harness.task("b")) == [("2", 20)], "a successor knows it, too"


def test_the_first_of_many_lives_stays_over() -> None:
    """A service that dies as soon as it starts, and a process of the first incarnation that was only stopped."""
    harness = Harness(batch_size=1)
    incarnations = [str(number) for number in range(30)]
    for incarnation in incarnations:
        harness.beat(incarnation=incarnation)
        harness.trained(0, incarnation=f"t{incarnation}")
    assert facts(harness.beat(incarnation=incarnations[0])) == [Fact.ZOMBIE_EXPLORER]
    assert facts(harness.trained(1, incarnation=f"t{incarnations[0]}")) == [Fact.ZOMBIE_TRAINER]
    assert harness.machine.fleet.find("e0", incarnations[-1]) is not None
    assert Fact.ZOMBIE_TRAINER not in facts(harness.trained(1, incarnation=f"t{incarnations[-1]}"))


def test_names_that_come_and_go_are_forgotten_however_often_coordinators_change() -> None:
    harness = Harness()
    for number in range(2 * GONE_KEPT):
        harness.beat(f"pod-{number}")
        harness.event(ExplorerLeft(explorer=f"pod-{number}", incarnation="1"))
        if number % 50 == 0:
            harness.restart()
    names = [f"pod-{number}" for number in range(GONE_KEPT, 2 * GONE_KEPT)]
    assert sorted(harness.machine.fleet.explorers) == sorted(names), "those that went last are remembered"
    harness.restart()
    assert len(harness.machine.fleet.explorers) == GONE_KEPT


def test_one_that_left_stays_gone() -> None:
    harness = Harness(batch_size=1).begun("a")
    harness.event(ExplorerLeft(explorer="e0", incarnation="1", reason="SIGTERM"))
    assert facts(harness.beat()) == [Fact.ZOMBIE_EXPLORER]
    assert [d.attempt for d in dispatches(harness.beat(incarnation="2"))] == [2]


def test_what_an_explorer_that_leaves_in_order_gives_back_costs_no_try() -> None:
    harness = Harness(batch_size=1, max_attempts=2)
    harness.beat("e0")
    harness.task("a")
    for number in range(5):
        harness.beat(f"e{number}", state="draining", running=[RunningAttempt(task_id="a", attempt=number + 1)])
        harness.beat(f"e{number}", state="draining")
        assert answers(harness.event(ExplorerLeft(explorer=f"e{number}", incarnation="1", reason="stopped"))) == []
        assert [d.attempt for d in dispatches(harness.beat(f"e{number + 1}"))] == [number + 2]
    assert batches(harness.finished("a", name="e5", attempt=6))[-1].state == "finalized"


def test_what_an_explorer_runs_when_it_ends_with_an_error_costs_a_try() -> None:
    harness = Harness(batch_size=1, max_attempts=1).begun("a")
    harness.beat(state="draining", running=[RunningAttempt(task_id="a", attempt=1)])
    (failed,) = answers(harness.event(ExplorerLeft(explorer="e0", incarnation="1", reason="its engine has died")))
    assert failed.status == "failed"


def test_orders_that_one_who_drains_never_took_go_to_others_at_once() -> None:
    harness = Harness(batch_size=2)
    harness.beat("e0")
    harness.task("taken")
    harness.task("overlooked")
    harness.beat("e1")
    orders = dispatches(harness.beat("e0", state="draining", running=[RunningAttempt(task_id="taken", attempt=1)]))
    assert [(d.explorer, d.task.task_id, d.attempt) for d in orders] == [("e1", "overlooked", 2)]
    harness.finished("overlooked", name="e1", attempt=2)
    assert batches(harness.finished("taken"))[-1].state == "finalized"


def test_a_coordinator_that_stood_still_blames_nobody() -> None:
    harness = Harness(batch_size=1).begun("a")
    harness.now += 3600
    assert facts(harness.machine.handle(Tick(), harness.now)) == []


def test_after_a_restart_attempts_go_on_and_everybody_has_the_whole_time_again() -> None:
    harness = Harness(batch_size=1).begun("a")
    harness.wait(9)
    harness.restart()
    assert facts(harness.wait(9)) == []
    assert batches(harness.finished("a"))[-1].state == "finalized"


def test_the_timeline_of_versions_joiners_and_failures() -> None:
    harness = Harness()
    assert groups(harness.trained(0)) == [(0, 0, [])]
    assert groups(harness.beat("e0", model_version=-1)) == [(0, 1, ["e0"])]
    assert groups(harness.beat("e1", model_version=-1)) == [], "one round at a time"
    assert groups(harness.synced(0, 1, "e0")) == [(0, 2, ["e1"])]
    assert groups(harness.synced(0, 2, "e1")) == []
    # A new version is for everybody, and with the same members the epoch stays.
    assert groups(harness.trained(1)) == [(1, 3, ["e0", "e1"])]
    harness.synced(1, 3, "e0")
    harness.synced(1, 3, "e1")
    assert groups(harness.trained(2)) == [(2, 3, ["e0", "e1"])]
    # One fails: the round goes on to its end, then a new epoch of the one who lags.
    assert groups(harness.synced(2, 3, "e0", ok=False)) == []
    assert groups(harness.synced(2, 3, "e1")) == []
    assert groups(harness.wait(1)) == [(2, 4, ["e0"])]
    # A version in the middle of a round waits for its end.
    assert groups(harness.trained(3)) == []
    assert groups(harness.synced(2, 4, "e0")) == [(3, 5, ["e0", "e1"])]
    assert Fact.LATE_SYNC in facts(harness.synced(2, 4, "e0"))
    # A member that dies is out of the round.
    harness.event(ExplorerLeft(explorer="e0", incarnation="1"))
    assert groups(harness.synced(3, 5, "e1")) == []
    assert not harness.machine.sync.state.pending


def test_an_explorer_that_fails_again_and_again_is_asked_less_and_less_often() -> None:
    harness = Harness(explorer_timeout_s=10_000).begun(model_version=-1)
    rounds = announced(harness.trained(0))
    for _ in range(200):
        if rounds:
            harness.synced(0, rounds[-1].epoch, ok=False)
        rounds = announced(harness.wait(1))
    assert 8 <= harness.machine.sync.state.epoch <= 16


def test_wrong_bytes_are_no_version_whatever_the_explorer_says() -> None:
    harness = Harness(batch_size=1)
    harness.trained(0)
    (version,) = announced(harness.beat(model_version=-1))
    assert Fact.SYNC_FAILED in facts(harness.synced(0, version.epoch, checksum="another"))
    harness.task("a")
    assert not dispatches(harness.beat(model_version=0)), "it believes to serve version 0"
    (again,) = announced(harness.wait(1))
    assert dispatches(harness.synced(0, again.epoch))


def served_by_a_former_incarnation(**settings: Any) -> Harness:
    """An explorer serves version 5 of a trainer that is dead; its next incarnation has come back with version 3."""
    harness = Harness(**settings).begun(model_version=-1)
    harness.trained(5, incarnation="t1")
    harness.synced(5, 1)
    assert facts(harness.trained(5, incarnation="t1")) == [Fact.LATE_VERSION]
    assert facts(harness.trained(4, incarnation="t1")) == [Fact.LATE_VERSION]
    assert groups(harness.trained(3, incarnation="t2")) == []
    assert facts(harness.trained(6, incarnation="t1")) == [Fact.ZOMBIE_TRAINER]
    return harness


def test_nobody_goes_back_for_a_trainer_that_started_anew_until_it_has_caught_up() -> None:
    harness = served_by_a_former_incarnation()
    assert groups(harness.trained(4, incarnation="t2")) == []
    assert groups(harness.beat("e1", model_version=-1)) == [], "nobody has version 5 to give"
    assert groups(harness.trained(5, incarnation="t2")) == [(5, 2, ["e0", "e1"])]


def test_what_a_former_incarnation_had_under_a_number_is_not_taken_for_what_has_it_now() -> None:
    harness = served_by_a_former_incarnation(batch_size=1)
    assert groups(harness.trained(5, incarnation="t2", checksum="others")) == [(5, 2, ["e0"])]
    harness.task("a")
    assert not dispatches(harness.beat(model_version=5)), "it serves version 5, of the former one"
    harness.synced(5, 2, ok=False)
    assert groups(harness.wait(1)) == [(5, 3, ["e0"])], "it is named until it has taken it"
    assert dispatches(harness.synced(5, 3, checksum="others"))


def test_a_late_answer_of_another_version_hides_what_a_heartbeat_told_before() -> None:
    harness = served_by_a_former_incarnation(batch_size=1)
    harness.trained(5, incarnation="t2", checksum="others")
    harness.beat(model_version=6)
    harness.synced(4, 1)
    assert not dispatches(harness.task("a")), "it serves version 4, of whichever lineage"


def test_a_version_that_came_back_with_the_same_bytes_is_drawn_with_meanwhile() -> None:
    harness = served_by_a_former_incarnation(batch_size=1)
    assert groups(harness.trained(5, incarnation="t2")) == [(5, 2, ["e0"])]
    assert dispatches(harness.task("a"))


def test_when_all_who_served_a_newer_version_are_gone_that_of_the_trainers_next_life_is_served() -> None:
    harness = served_by_a_former_incarnation()
    harness.beat("e1", model_version=-1)
    assert groups(harness.event(ExplorerLeft(explorer="e0", incarnation="1"))) == [(3, 2, ["e1"])]


def test_nobody_is_sent_to_a_trainer_that_fell_silent() -> None:
    harness = Harness(explorer_timeout_s=10_000)
    harness.trained(0)
    at = {"master_address": "127.0.0.1", "master_port": 1}
    life = {"trainer": "trainer", "incarnation": "t1", "model": "policy"}
    beat = TrainerHeartbeat(**life, **at, state="ready", step=0, version=0)
    harness.event(beat)
    harness.wait(40)
    assert announced(harness.beat(model_version=-1)) == []
    assert groups(harness.event(beat)) == [(0, 1, ["e0"])]


def test_a_version_that_is_not_published_is_a_warning_to_those_who_wait_for_it() -> None:
    harness = Harness(batch_size=1)
    harness.trained(0)
    harness.beat()
    harness.task("a")
    harness.task("b")
    assert facts(harness.trained(1, publish=False)) == [Fact.STARVED]


def test_explorers_that_drain_take_versions_as_long_as_they_have_something_to_finish() -> None:
    harness = Harness(batch_size=1)
    harness.beat("e0")
    harness.task("a")
    assert groups(harness.trained(1)) == [(1, 1, ["e0"])]
    harness.synced(1, 1)
    running = [RunningAttempt(task_id="a", attempt=1)]
    harness.beat("e0", state="draining", running=running, model_version=1)
    assert groups(harness.trained(2)) == [(2, 1, ["e0"])]
    harness.event(ExplorerLeft(explorer="e0", incarnation="1", reason="stopped"))
    assert groups(harness.trained(3)) == [(3, 2, [])]


def test_explorers_that_start_or_drain_with_nothing_take_no_part() -> None:
    harness = Harness()
    harness.beat("e0", state="starting", model_version=-1)
    harness.beat("e1", state="draining")
    assert groups(harness.trained(1)) == [(1, 0, [])]
    assert groups(harness.beat("e0", state="ready", model_version=-1)) == [(1, 1, ["e0"])]


def test_entries_of_another_version_are_refused_with_advice() -> None:
    assert unpack("books", pack({"tasks": 1})) == {"tasks": 1}
    assert unpack("books", StateCodec().pack(Counters(tasks=1)))["tasks"] == 1
    with pytest.raises(StateError, match="'books' of the coordinator's state has version 99, this program reads 1"):
        unpack("books", b"\x92\x63\x80")
    for broken in (b"\xc1", b"\x80", b"\x91\x01", b""):
        with pytest.raises(StateError, match="'books'"):
            unpack("books", broken)


@pytest.mark.parametrize(
    "entries",
    [
        {"results/0/none": pack([])},
        {"ended/1": pack(1)},
        {"progress/none": pack({"last_ended": 1, "first_error": None, "parts": []})},
        {"assigned/nobody": pack([["t", 0, 1, 1.0]])},
        *({"books": pack(body)} for body in ({"tasks": "many"}, [1], "a")),
        {"done/x": pack([])},
    ],
)
def test_a_state_that_contradicts_itself_is_refused(entries: dict[str, bytes]) -> None:
    with pytest.raises(StateError):
        CoordinatorMachine(CoordinatorSettings()).restore(entries.items())


def test_of_batches_that_are_full_the_one_that_was_submitted_first_is_next() -> None:
    harness = Harness(max_inflight_batches=1).begun()
    names = [f"b{number}" for number in range(6)]
    for name in names:
        harness.submit(name, 1)
    harness.task("first", batch_id="b0", batch_type="train")
    for name in reversed(names[1:]):
        harness.task(f"of-{name}", batch_id=name, batch_type="train")
    order = []
    for _ in names:
        (batch,) = [batch for batch in harness.machine.ledger.batches.values() if batch.state == "running"]
        order.append(batch.batch_id)
        harness.restart()
        harness.abort(batch.batch_id)
    assert order == names


def test_a_greedy_task_of_several_runs_is_refused_by_name() -> None:
    harness = Harness(group_size=8).begun()
    (refused,) = [e for e in harness.task("a", sampling=Sampling(temperature=0)) if isinstance(e, RejectTask)]
    assert "8 runs at temperature 0 are all alike" in refused.detail
    one = harness.task("b", sampling=Sampling(temperature=0), repeat_times=1)
    assert not [effect for effect in one if isinstance(effect, RejectTask)]
    with pytest.raises(RecordError, match="2 runs at temperature 0 are all alike"):
        Task(workflow="math", prompt="1", sampling=Sampling(temperature=0), repeat_times=2)
