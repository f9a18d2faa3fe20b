"""Single decisions of the machine, one story each."""

from typing import Any

import pytest

from schemas import (
    Cancel,
    ExplorerLeft,
    TrainerHeartbeat,
)
from tests.support.story import TRACE, Story, announced, batches, cancels, dispatches, facts, groups, refusals
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import (
    Command,
    CoordinatorMachine,
    Fact,
    Order,
    StateError,
    Tick,
)
from trinity_bus.coordination.counters import Counters
from trinity_bus.coordination.state_codec import StateCodec, unpack

pack = StateCodec().pack

# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_from_its_first_task_to_its_manifest() -> None:
    story = Story()
    story.beat()
    assert [b.state for b in batches(story.task("a"))] == ["pending"]
    started = story.task("b", repeat_times=3, timeout_s=7.0)
    assert [b.state for b in batches(started)] == ["running"]
    assert [(d.task.task_id, d.repeat_times, d.timeout_s, d.min_version) for d in dispatches(started)] == [
        ("a", 8, 300.0, 0),
        ("b", 3, 7.0, 0),
    ]
    assert all(c.traceparent == TRACE for c in started if isinstance(c, Order))
    assert batches(story.finished("b")) == []
    ended = batches(story.finished("a"))
    assert [b.state for b in ended] == ["finalizing", "finalized"]
    assert [e.task_id for e in ended[1].manifest] == ["a", "b"], "in the order of acceptance"
    assert ended[1].metrics == {
        "rollout/reward/mean": 0.5,
        "rollout/reward/max": 0.5,
        "rollout/reward/min": 0.5,
        "rollout/time/task_execution/mean": 3.0,
        "rollout/time/task_execution/max": 3.0,
        "rollout/time/task_execution/min": 3.0,
        "rollout/finished_task_count": 2.0,
        "rollout/failed_task_count": 0.0,
    }
    assert ended[1].trace_links == [TRACE]


def test_a_batch_that_never_fills_holds_up_nobody() -> None:
    story = Story()
    story.beat()
    story.task("lonely", batch_id="stuck", batch_size=5)
    story.task("a")
    assert dispatches(story.task("b"))
    story.finished("a")
    assert [b.sequence for b in batches(story.finished("b")) if b.state == "finalized"] == [1]


def test_batches_are_finalized_in_the_order_of_training() -> None:
    story = Story(batch_size=1, max_staleness=5)
    story.beat()
    story.task("a")
    story.task("b")
    assert [b.state for b in batches(story.finished("b"))] == ["finalizing"]
    assert [(b.batch_id, b.state) for b in batches(story.finished("a"))] == [
        ("train-000001", "finalizing"),
        ("train-000001", "finalized"),
        ("train-000002", "finalized"),
    ]


def test_no_more_train_batches_are_open_than_allowed_and_evaluation_does_not_count() -> None:
    story = Story(batch_size=1, max_inflight_batches=1, max_staleness=5)
    story.beat()
    assert dispatches(story.task("a"))
    assert not dispatches(story.task("b"))
    assert [d.task.task_id for d in dispatches(story.task("e", batch_type="eval"))] == ["e"]
    assert [d.task.task_id for d in dispatches(story.finished("a"))] == ["b"]


def test_an_eval_batch_needs_no_experience_and_gets_eval_metrics() -> None:
    story = Story()
    story.beat()
    story.task("a", batch_id="7/held-out", batch_type="eval", batch_size=1)
    (_, ended) = batches(story.finished("a", batch_type="eval", experience=None, samples=0))
    assert ended.sequence == 0
    assert ended.manifest[0].parts[0].position is None
    assert ended.metrics["eval/held-out/reward/mean@2"] == 0.5
    assert ended.metrics["eval/held-out/finished_task_count"] == 1.0


def test_on_policy_batches_wait_for_the_version_that_they_need() -> None:
    story = Story(batch_size=1)
    story.trained(0)
    story.beat()
    assert [d.min_version for d in dispatches(story.task("a"))] == [0]
    assert not dispatches(story.task("b"))
    story.finished("a")
    (version,) = announced(story.trained(1))
    (order,) = dispatches(story.synced(1, version.epoch))
    assert (order.task.task_id, order.min_version) == ("b", 1)


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
    story = Story()
    story.beat(slots=1)
    assert refusals(story.task("first", **first)) == []
    before = dict(story.store)
    assert refusals(story.task(second.pop("task_id", "second"), **second)) == [refusal]
    assert story.store == before, "a refused task leaves no trace"


def test_ids_of_ended_tasks_and_batches_are_not_taken_again() -> None:
    story = Story(batch_size=1)
    story.beat()
    story.task("a", batch_id="b")
    story.finished("a")
    assert refusals(story.task("a")) == ["duplicate_task"]
    assert refusals(story.task("c", batch_id="b")) == ["batch_closed"]
    story.restart()
    assert refusals(story.task("a")) == ["duplicate_task"]
    assert refusals(story.task("c", batch_id="b")) == ["batch_closed"]


def test_a_workflow_is_judged_only_when_somebody_could_know_it() -> None:
    story = Story(batch_size=1)
    assert refusals(story.task("early", workflow="strange")) == []
    story.beat(state="starting", workflows=[])
    assert story.machine.ledger.tasks
    commands = story.beat()
    assert refusals(commands) == ["unknown_workflow"]
    (entry,) = batches(commands)[-1].manifest
    assert "no explorer has a workflow 'strange'; known are math" in (entry.error or "")


def test_a_task_that_nobody_can_run_does_not_keep_its_named_batch_from_ending() -> None:
    story = Story()
    story.beat()
    story.task("good", batch_id="b", batch_size=2)
    commands = story.task("bad", batch_id="b", batch_size=2, workflow="strange")
    assert refusals(commands) == ["unknown_workflow"]
    ended = batches(story.finished("good"))[-1]
    assert [entry.status for entry in ended.manifest] == ["completed", "failed"]
    assert "no explorer has a workflow 'strange'" in (ended.manifest[1].error or "")


def test_tasks_for_an_explorer_that_restarts_wait_for_it() -> None:
    story = Story(batch_size=1)
    story.beat("e0")
    story.beat("e1", workflows=["rare"])
    story.event(ExplorerLeft(explorer="e1", incarnation="1"))
    assert refusals(story.task("a", workflow="rare")) == []
    assert dispatches(story.beat("e1", life="2", workflows=["rare"]))


def test_reading_stops_at_the_limit_unless_more_tasks_are_what_it_takes() -> None:
    story = Story(batch_size=2, max_open_tasks=3)
    for number in range(4):
        assert story.machine.wants_tasks()
        story.task(f"t{number}", batch_id=f"b{number}")
    assert story.machine.wants_tasks(), "no batch is full: only more tasks help"
    story.task("t4", batch_id="b0")
    assert story.machine.wants_tasks(), "two tasks can go on, and three may be open"
    story.task("t5", batch_id="b1")
    assert not story.machine.wants_tasks()
    story.restart()
    assert not story.machine.wants_tasks()


# -- attempts --------------------------------------------------------------------------------------------------------


def test_a_failed_attempt_goes_elsewhere_and_the_first_error_is_told_in_the_end() -> None:
    story = Story(batch_size=1)
    story.beat("e0")
    story.beat("e1")
    (first,) = dispatches(story.task("a"))
    retried = story.finished("a", status="failed", completed_runs=0, error="ValueError: first")
    assert [(d.explorer, d.attempt) for d in dispatches(retried)] == [("e1", 2)]
    assert first.explorer == "e0"
    ended = story.finished("a", name="e1", attempt=2, status="failed", completed_runs=0, error="KeyError: second")
    (entry,) = batches(ended)[-1].manifest
    assert (entry.error, entry.status, entry.parts) == ("ValueError: first", "failed", [])
    final = batches(ended)[-1]
    assert final.failed_task_count == 1
    assert "rollout/reward/mean" not in final.metrics, "a failure is not a reward of zero"
    assert final.trace_links == []


def test_a_partial_result_counts_with_its_error() -> None:
    story = Story(batch_size=1, return_partial_tasks=True)
    story.beat()
    story.task("a")
    ended = batches(story.finished("a", status="partial", completed_runs=1, error="boom"))[-1]
    assert (ended.manifest[0].error, ended.manifest[0].parts[0].samples, ended.failed_task_count) == ("boom", 2, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"experience": None},
        {"samples": 0},
        {"completed_runs": 0},
        {"version_min": -1},
    ],
)
def test_a_train_result_that_cannot_be_trained_on_is_a_failure(fields: dict[str, Any]) -> None:
    story = Story(batch_size=1)
    story.beat()
    story.task("a")
    assert Fact.ATTEMPT_FAILED in facts(story.finished("a", **fields))


def test_an_attempt_out_of_time_is_cancelled_and_its_late_result_ignored() -> None:
    story = Story(batch_size=1, task_timeout_s=5, explorer_timeout_s=100)
    story.beat()
    story.task("a")
    late = story.wait(6)
    assert [(c.task_id, c.attempt) for c in cancels(late)] == [("a", 1)]
    assert [d.attempt for d in dispatches(late)] == [2]
    orders = [c.record for c in late if isinstance(c, Order)]
    assert isinstance(orders[0], Cancel), "the lane's order frees the slot before it is taken again"
    assert facts(story.finished("a", attempt=1)) == [Fact.LATE_RESULT]
    assert batches(story.finished("a", attempt=2))[-1].manifest[0].parts[0].attempt == 2
    assert facts(story.finished("a", attempt=2)) == [Fact.LATE_RESULT]


def test_a_silent_explorer_loses_its_tasks_and_may_come_back() -> None:
    story = Story(batch_size=1)
    story.beat("e0")
    story.task("a")
    story.beat("e1")
    commands: list[Command] = []
    while Fact.EXPLORER_LOST not in facts(commands):
        assert story.now < 12
        commands = story.wait(1)
        story.beat("e1")
    assert story.now > 10
    assert [(d.explorer, d.attempt) for d in dispatches(commands)] == [("e1", 2)]
    assert [(c.explorer, c.attempt) for c in cancels(commands)] == [("e0", 1)]
    assert facts(story.finished("a", name="e0")) == [Fact.LATE_RESULT]
    assert Fact.EXPLORER_JOINED in facts(story.beat("e0"))


def test_a_new_life_ends_the_old_one_for_good() -> None:
    story = Story(batch_size=1)
    story.beat(life="1")
    story.task("a")
    commands = story.beat(life="2")
    assert [c.incarnation for c in cancels(commands)] == ["1"]
    assert [(d.incarnation, d.attempt) for d in dispatches(commands)] == [("2", 2)]
    assert facts(story.beat(life="1")) == [Fact.ZOMBIE_EXPLORER]
    assert facts(story.event(ExplorerLeft(explorer="e0", incarnation="1"))) == [Fact.ZOMBIE_EXPLORER]
    assert story.machine.fleet.find("e0", "2") is not None


def test_the_first_of_many_lives_stays_over() -> None:
    """A service that dies as soon as it starts, and a process of the first life that was only stopped."""
    story = Story(batch_size=1)
    lives = [str(number) for number in range(30)]
    for life in lives:
        story.beat(life=life)
        story.trained(0, life=f"t{life}")
    assert facts(story.beat(life=lives[0])) == [Fact.ZOMBIE_EXPLORER]
    assert facts(story.trained(1, life=f"t{lives[0]}")) == [Fact.ZOMBIE_TRAINER]
    assert story.machine.fleet.find("e0", lives[-1]) is not None
    assert Fact.ZOMBIE_TRAINER not in facts(story.trained(1, life=f"t{lives[-1]}"))


def test_one_that_left_stays_gone() -> None:
    story = Story(batch_size=1)
    story.beat()
    story.task("a")
    story.event(ExplorerLeft(explorer="e0", incarnation="1", reason="SIGTERM"))
    assert facts(story.beat()) == [Fact.ZOMBIE_EXPLORER]
    assert [d.attempt for d in dispatches(story.beat(life="2"))] == [2]


def test_a_coordinator_that_stood_still_blames_nobody() -> None:
    story = Story(batch_size=1)
    story.beat()
    story.task("a")
    story.now += 3600
    assert facts(story.machine.handle(Tick(), story.now)) == []


def test_after_a_restart_attempts_go_on_and_everybody_has_the_whole_time_again() -> None:
    story = Story(batch_size=1)
    story.beat()
    story.task("a")
    story.wait(9)
    story.restart()
    assert facts(story.wait(9)) == []
    assert batches(story.finished("a"))[-1].state == "finalized"


# -- weights ---------------------------------------------------------------------------------------------------------


def test_the_timeline_of_versions_joiners_and_failures() -> None:
    story = Story()
    assert groups(story.trained(0)) == [(0, 0, [])]
    assert groups(story.beat("e0", model_version=-1)) == [(0, 1, ["e0"])]
    assert groups(story.beat("e1", model_version=-1)) == [], "one round at a time"
    assert groups(story.synced(0, 1, "e0")) == [(0, 2, ["e1"])]
    assert groups(story.synced(0, 2, "e1")) == []
    # A new version is for everybody, and with the same members the epoch stays.
    assert groups(story.trained(1)) == [(1, 3, ["e0", "e1"])]
    story.synced(1, 3, "e0")
    story.synced(1, 3, "e1")
    assert groups(story.trained(2)) == [(2, 3, ["e0", "e1"])]
    # One fails: the round goes on to its end, then a new epoch of the one who lags.
    assert groups(story.synced(2, 3, "e0", ok=False)) == []
    assert groups(story.synced(2, 3, "e1")) == []
    assert groups(story.wait(1)) == [(2, 4, ["e0"])]
    # A version in the middle of a round supersedes it; late answers are only noted.
    assert groups(story.trained(3)) == [(3, 5, ["e0", "e1"])]
    assert Fact.LATE_SYNC in facts(story.synced(2, 4, "e0"))
    # A member that dies is out of the round.
    story.event(ExplorerLeft(explorer="e0", incarnation="1"))
    assert groups(story.synced(3, 5, "e1")) == []
    assert not story.machine.sync.state.pending


def test_a_member_that_never_answers_is_asked_again_after_its_time() -> None:
    story = Story(explorer_timeout_s=1000)
    story.beat(model_version=-1)
    assert groups(story.trained(0)) == [(0, 1, ["e0"])]
    later = story.wait(21)
    assert facts(later) == [Fact.SYNC_FAILED]
    assert groups(later) == [(0, 2, ["e0"])]


def test_an_explorer_that_fails_again_and_again_is_asked_less_and_less_often() -> None:
    story = Story(explorer_timeout_s=10_000)
    story.beat(model_version=-1)
    rounds = announced(story.trained(0))
    for _ in range(200):
        if rounds:
            story.synced(0, rounds[-1].epoch, ok=False)
        rounds = announced(story.wait(1))
    assert 8 <= story.machine.sync.state.epoch <= 16


def test_wrong_bytes_are_no_version_whatever_the_explorer_says() -> None:
    story = Story(batch_size=1)
    story.trained(0)
    (version,) = announced(story.beat(model_version=-1))
    assert Fact.SYNC_FAILED in facts(story.synced(0, version.epoch, checksum="another"))
    story.task("a")
    assert not dispatches(story.beat(model_version=0)), "it believes to serve version 0"
    (again,) = announced(story.wait(1))
    assert dispatches(story.synced(0, again.epoch))


def served_by_a_former_life() -> Story:
    """An explorer serves version 5 of a trainer that is dead; its next life has come back with version 3."""
    story = Story()
    story.beat(model_version=-1)
    story.trained(5, life="t1")
    story.synced(5, 1)
    assert facts(story.trained(5, life="t1")) == [Fact.LATE_VERSION]
    assert facts(story.trained(4, life="t1")) == [Fact.LATE_VERSION]
    assert groups(story.trained(3, life="t2")) == []
    assert facts(story.trained(6, life="t1")) == [Fact.ZOMBIE_TRAINER]
    return story


def test_nobody_goes_back_for_a_trainer_that_started_anew_until_it_has_caught_up() -> None:
    story = served_by_a_former_life()
    assert groups(story.trained(4, life="t2")) == []
    assert groups(story.beat("e1", model_version=-1)) == [], "nobody has version 5 to give"
    assert groups(story.trained(5, life="t2")) == [(5, 2, ["e0", "e1"])]


def test_when_all_who_served_a_newer_version_are_gone_that_of_the_trainers_next_life_is_served() -> None:
    story = served_by_a_former_life()
    story.beat("e1", model_version=-1)
    assert groups(story.event(ExplorerLeft(explorer="e0", incarnation="1"))) == [(3, 2, ["e1"])]


def test_nobody_is_sent_to_a_trainer_that_fell_silent() -> None:
    story = Story(explorer_timeout_s=10_000)
    story.trained(0)
    beat = TrainerHeartbeat(
        trainer="trainer",
        incarnation="t1",
        state="ready",
        model="policy",
        step=0,
        version=0,
        master_address="127.0.0.1",
        master_port=1,
    )
    story.event(beat)
    story.wait(40)
    assert announced(story.beat(model_version=-1)) == []
    assert groups(story.event(beat)) == [(0, 1, ["e0"])]


def test_a_version_that_is_not_published_is_a_warning_to_those_who_wait_for_it() -> None:
    story = Story(batch_size=1)
    story.trained(0)
    story.beat()
    story.task("a")
    story.task("b")
    assert facts(story.trained(1, publish=False)) == [Fact.STARVED]


def test_explorers_that_start_or_drain_take_no_part() -> None:
    story = Story()
    story.beat("e0", state="starting", model_version=-1)
    story.beat("e1", state="draining")
    assert groups(story.trained(1)) == [(1, 0, [])]
    assert groups(story.beat("e0", state="ready", model_version=-1)) == [(1, 1, ["e0"])]


# -- state -----------------------------------------------------------------------------------------------------------


def test_entries_of_another_version_are_refused_with_advice() -> None:
    assert unpack("books", pack({"tasks": 1})) == {"tasks": 1}
    assert unpack("books", StateCodec().pack(Counters(tasks=1)))["tasks"] == 1
    with pytest.raises(StateError, match="'books' of the coordinator's state has version 99, this program reads 2"):
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
        {"books": pack({"tasks": "many"})},
        {"done/x": pack([])},
    ],
)
def test_a_state_that_contradicts_itself_is_refused(entries: dict[str, bytes]) -> None:
    with pytest.raises(StateError):
        CoordinatorMachine(CoordinatorSettings()).restore(entries.items())


def test_the_first_tick_of_a_new_machine_decides_nothing() -> None:
    machine = CoordinatorMachine(CoordinatorSettings())
    assert machine.handle(Tick(), 0.0) == []
    assert machine.changes() == []
    assert machine.entries() == {}
