"""Groups that are split over explorers, partial results, over-rollout, limits of time, and speculative attempts."""

from typing import Any

import pytest

from schemas import Dispatch, Position
from tests.support.simulation.harness import Harness, answers, batches, cancels, dispatches, facts, refusals, statuses
from trinity_bus.config import CoordinatorSettings, Settings
from trinity_bus.coordination import Effect, Fact
from trinity_bus.errors import ConfigError


def split_harness(**settings: Any) -> Harness:
    """Groups of six runs in parts of two; tasks are batches of one."""
    return Harness(**{"batch_size": 1, "group_size": 6, "max_repeat_times_per_runner": 2, **settings})


def runs(effects: list[Effect]) -> list[tuple[str, int, int, int]]:
    return [(d.explorer, d.attempt, d.run_id_base, d.repeat_times) for d in dispatches(effects)]


def failed(harness: Harness, task_id: str, **fields: Any) -> Any:
    values = {"status": "failed", "completed_runs": 0, "samples": 0, "experience": None, "error": "ValueError: no"}
    return harness.finished(task_id, **{**values, **fields})


def test_a_group_is_split_and_joined_again() -> None:
    harness = split_harness()
    harness.beat("e0", slots=2)
    harness.beat("e1", slots=2)
    assert runs(harness.task("a", repeat_times=5)) == [("e0", 1, 0, 2), ("e0", 2, 2, 2), ("e1", 3, 4, 1)]
    assert statuses(harness.finished("a", name="e1", attempt=3, version_min=0, version_max=2, seconds=5.0)) == []
    assert statuses(harness.finished("a", attempt=1)) == []
    harness.restart()
    effects = harness.finished("a", attempt=2, metrics=[{"reward": 0.5}, {"reward": 0.5}])
    (result,) = answers(effects)
    assert (result.status, result.completed_runs, result.total_runs, result.attempts) == ("completed", 5, 5, 3)
    assert [part.attempt for part in result.parts] == [1, 2, 3], "in the order of their runs"
    assert (result.version_min, result.version_max, result.seconds) == (0, 2, 11.0)
    assert result.metrics == {"reward": 0.5, "time/task_execution": 11.0 / 3}
    (entry,) = batches(effects)[-1].manifest
    assert (entry.parts, entry.status) == (result.parts, "completed")


def test_parts_of_a_task_go_together_where_that_costs_no_freshness() -> None:
    harness = split_harness(max_staleness=5, max_inflight_batches=5)
    harness.beat("e0", slots=4)
    harness.beat("e1", slots=8)
    harness.task("other", repeat_times=1)
    assert [explorer for explorer, *_ in runs(harness.task("a"))] == ["e1", "e1", "e1"]
    harness.beat("e2", slots=2, model_version=1)
    assert [explorer for explorer, *_ in runs(harness.task("b"))] == ["e2", "e2", "e0"]


def test_with_partial_results_a_task_goes_on_without_the_part_that_failed() -> None:
    harness = split_harness(max_attempts=1, return_partial_tasks=True, max_staleness=5).begun("a", slots=3)
    assert statuses(failed(harness, "a", attempt=2)) == []
    assert statuses(harness.finished("a", attempt=1)) == []
    harness.restart()
    effects = harness.finished("a", attempt=3, status="partial", completed_runs=1, samples=1, error="broke off")
    (result,) = answers(effects)
    assert (result.status, result.completed_runs, result.total_runs) == ("partial", 3, 6)
    assert ([part.attempt for part in result.parts], result.error) == ([1, 3], "ValueError: no")
    harness.task("b")
    for attempt in (1, 2, 3):
        effects = failed(harness, "b", attempt=attempt, error=f"error {attempt}")
    assert [(r.status, r.error) for r in answers(effects)] == [("failed", "error 1")]


def test_in_an_open_batch_a_part_that_failed_for_good_does_not_take_the_others_along() -> None:
    harness = split_harness(max_attempts=1).begun(slots=8)
    harness.submit("open", None)
    harness.task("b", batch_id="open", repeat_times=4)
    assert answers(failed(harness, "b", attempt=2)) == []
    harness.restart()
    (kept,) = answers(harness.finished("b", attempt=1))
    assert (kept.status, kept.completed_runs, kept.total_runs, len(kept.parts)) == ("partial", 2, 4, 1)
    assert kept.error is not None
    harness.task("c", batch_id="open", repeat_times=4)
    failed(harness, "c", attempt=1)
    (nothing,) = answers(failed(harness, "c", attempt=2))
    assert (nothing.status, nothing.parts) == ("failed", [])


BROKE_OFF: dict[str, Any] = {"status": "partial", "total_runs": 6, "error": "ValueError: run 1 broke off"}


def broken_off(harness: Harness, *done: int, attempt: int = 1, **fields: Any) -> list[Effect]:
    values = {**BROKE_OFF, "completed_runs": len(done), "samples": len(done), "runs": list(done), **fields}
    return harness.finished("a", attempt=attempt, **values)


def test_of_an_attempt_that_broke_off_only_the_runs_that_failed_are_asked_for_again() -> None:
    harness = Harness(batch_size=1, group_size=6, max_attempts=3).begun("a", slots=8)
    effects = broken_off(harness, 0, 2, 5, experience=Position(partition=0, offset=70))
    assert [(d.attempt, d.run_id_base, d.repeat_times) for d in dispatches(effects)] == [(2, 1, 1), (3, 3, 2)]
    harness.restart()
    harness.beat(slots=8)
    again = broken_off(harness, 4, attempt=3, total_runs=2, experience=Position(partition=0, offset=72))
    assert [(d.attempt, d.run_id_base, d.repeat_times) for d in dispatches(again)] == [(4, 3, 1)]
    harness.restart()
    harness.beat(slots=8)
    one: dict[str, Any] = {"completed_runs": 1, "total_runs": 1, "samples": 1}
    assert statuses(harness.finished("a", attempt=4, **one, experience=Position(partition=0, offset=73))) == []
    (result,) = answers(harness.finished("a", attempt=2, **one, experience=Position(partition=0, offset=71)))
    assert (result.status, result.completed_runs, result.total_runs, result.error) == ("completed", 6, 6, None)
    found = [(p.attempt, p.samples, p.position and p.position.offset) for p in result.parts]
    assert found == [(1, 3, 70), (2, 1, 71), (3, 1, 72), (4, 1, 73)]


def test_a_run_that_fails_each_time_fails_its_task_and_its_first_error_is_told() -> None:
    harness = Harness(batch_size=1, group_size=6).begun("a", slots=8)
    broken_off(harness, 0, 2, 3, 4, 5)
    harness.restart()
    harness.beat(slots=8)
    effects = failed(harness, "a", attempt=2, error="ValueError: again")
    assert [(r.status, r.error, r.parts) for r in answers(effects)] == [("failed", "ValueError: run 1 broke off", [])]


@pytest.mark.parametrize(
    "said", [[], [0, 1, 2], [0, 6], [0, 0]], ids=["nothing", "another number", "a run of nobody", "one run twice"]
)
def test_an_attempt_that_does_not_say_which_runs_it_has_done_is_made_again_whole(said: list[int]) -> None:
    harness = Harness(batch_size=1, group_size=6).begun("a", slots=8)
    (again,) = dispatches(broken_off(harness, 0, 1, runs=said))
    assert (again.attempt, again.run_id_base, again.repeat_times) == (2, 0, 6)
    assert statuses(harness.finished("a", attempt=2, completed_runs=6, total_runs=6)) == [("a", "completed")]


def test_no_more_parts_come_of_it_than_a_task_of_its_batch_may_have() -> None:
    harness = Harness(group_size=6, max_record_mib=2).begun(slots=8)
    most = harness.settings.max_batch_parts // harness.settings.max_batch_tasks
    harness.submit("large", harness.settings.max_batch_tasks)
    for number in range(harness.settings.max_batch_tasks):
        task_id = "a" if number == 0 else f"t{number}"
        harness.machine.handle(harness.arrived(task_id, batch_id="large"), 0.0)
    assert most < 4
    again = [d for d in dispatches(broken_off(harness, 0, 2, 4, batch_id="large")) if d.task.task_id == "a"]
    assert [(d.run_id_base, d.repeat_times) for d in again] == [(0, 6)]


def test_groups_that_would_make_too_large_a_manifest_are_refused() -> None:
    harness = Harness(group_size=8, max_repeat_times_per_runner=1).begun()
    assert refusals(harness.task("a", batch_id="b", batch_size=8192, repeat_times=4)) == []
    assert refusals(harness.task("b", batch_id="b", batch_size=8192, repeat_times=5)) == ["batch_too_large"]
    assert refusals(harness.task("c", batch_id="c", batch_size=16_384, repeat_times=2)) == []
    assert refusals(harness.task("d", batch_id="d", batch_size=1, repeat_times=1024)) == []


def test_settings_that_would_refuse_their_own_tasks_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_BUS_COORDINATOR__BATCH_SIZE", "16384")
    monkeypatch.setenv("TRINITY_BUS_COORDINATOR__MAX_REPEAT_TIMES_PER_RUNNER", "2")
    with pytest.raises(ConfigError, match="are 65536 parts of 2, and a batch has 32768 at most: raise TRINITY_BUS_"):
        Settings()
    monkeypatch.setenv("TRINITY_BUS_COORDINATOR__MAX_REPEAT_TIMES_PER_RUNNER", "4")
    assert Settings().coordinator == CoordinatorSettings(batch_size=16_384, max_repeat_times_per_runner=4)


def test_a_batch_with_enough_finished_tasks_waits_a_while_and_ends_without_the_others() -> None:
    harness = Harness(batch_size=4, over_rollout_ratio=0.5, wait_after_min_s=5, explorer_timeout_s=1000, max_attempts=1)
    harness.beat()
    started = [harness.task(name) for name in "abcd"][-1]
    assert [b.min_wait_num for b in batches(started)] == [2]
    harness.finished("b")
    assert batches(harness.wait(10)) == []
    failed(harness, "d")
    assert batches(harness.wait(4)) == []
    effects = harness.wait(2)
    assert statuses(effects) == [("a", "aborted"), ("c", "aborted")]
    assert [c.task_id for c in cancels(effects)] == ["a", "c"]
    ended = batches(effects)[-1]
    counts = (ended.completed_task_count, ended.failed_task_count, ended.aborted_task_count)
    assert (ended.state, counts) == ("finalized", (2, 1, 2))
    assert [entry.status for entry in ended.manifest] == ["aborted", "completed", "aborted", "failed"]
    assert ended.manifest[0].error == "batch train-000001 ended with 2 of 4 tasks finished"
    assert ended.metrics["rollout/finished_task_count"] == 2.0
    assert facts(harness.finished("a")) == [Fact.LATE_RESULT]


@pytest.mark.parametrize("wait_s", [0, 5])
def test_after_a_restart_a_batch_with_enough_waits_its_whole_time_again(wait_s: int) -> None:
    harness = Harness(over_rollout_ratio=0.5, wait_after_min_s=wait_s, explorer_timeout_s=1000).begun("a", "b")
    harness.finished("a")
    harness.wait(max(wait_s - 1, 0))
    harness.restart()
    assert statuses(harness.wait(max(wait_s - 1, 0))) == []
    assert statuses(harness.wait(2)) == [("b", "aborted")]


def test_runs_that_are_done_when_a_batch_ends_count_with_partial_results() -> None:
    harness = split_harness(
        batch_size=2, over_rollout_ratio=0.5, wait_after_min_s=5, explorer_timeout_s=1000, return_partial_tasks=True
    )
    harness.beat(slots=8)
    harness.task("a", repeat_times=1)
    harness.task("b", repeat_times=4)
    harness.finished("a")
    harness.finished("b", attempt=1)
    (result,) = answers(harness.wait(6))
    assert (result.task_id, result.status, result.completed_runs, result.total_runs) == ("b", "partial", 2, 4)


def test_evaluation_waits_for_all_whatever_is_said() -> None:
    harness = Harness(over_rollout_ratio=0.5, wait_after_min_s=1, explorer_timeout_s=1000).begun()
    assert [b.min_wait_num for b in batches(harness.submit("b", 2, min_wait_num=5))] == [2], "not for more than all"
    for batch_id, fields in (("all", {}), ("one", {"min_wait_num": 1})):
        harness.submit(batch_id, 2, batch_type="eval", **fields)
        for number in range(2):
            harness.task(f"{batch_id}-{number}", batch_id=batch_id, batch_type="eval")
        harness.finished(f"{batch_id}-0", batch_type="eval", experience=None)
    assert statuses(harness.wait(10)) == []


def test_limits_follow_what_attempts_took_once_enough_batches_were_trained() -> None:
    ratios = {"dynamic_timeout_ratio": 3.0, "dynamic_timeout_warmup_steps": 2}
    harness = Harness(batch_size=1, explorer_timeout_s=1000, max_staleness=9, **ratios).begun()
    limits = []
    for number in range(4):
        (order,) = dispatches(harness.task(f"t{number}", timeout_s=50.0 if number == 3 else None))
        limits.append(order.timeout_s)
        harness.wait(4)
        if number == 1:
            harness.restart()  # Nobody has timed the attempt under way.
        harness.finished(f"t{number}")
    assert limits == [300.0, 300.0, 12.0, 12.0]
    assert harness.machine.heartbeat("c", "i").dynamic_timeout_s == 12.0
    harness.restart()
    assert harness.machine.heartbeat("c", "i").dynamic_timeout_s == 12.0


def test_open_batches_count_for_the_warmup_once_everything_of_them_has_ended_and_was_taken() -> None:
    harness = Harness(dynamic_timeout_ratio=2.0, dynamic_timeout_warmup_steps=1, explorer_timeout_s=1000).begun()

    def limit() -> float:
        return harness.machine.heartbeat("c", "i").dynamic_timeout_s

    def opened(batch_id: str, batch_type: str = "train") -> None:
        harness.submit(batch_id, None, batch_type=batch_type)
        harness.task(batch_id, batch_id=batch_id, batch_type=batch_type)
        harness.now += 5

    opened("1@e", "eval")
    harness.finished("1@e", batch_type="eval", experience=None)
    harness.abort("1@e")
    opened("1@cut")
    harness.abort("1@cut")
    harness.submit("1@none", None)
    harness.abort("1@none")
    opened("1@x")
    harness.finished("1@x")
    assert limit() == 300
    harness.abort("1@x")
    assert limit() == 10
    harness.restart()
    assert limit() == 10


def test_attempts_out_of_time_count_for_the_average_and_those_of_evaluation_do_not() -> None:
    harness = Harness(
        batch_size=1, dynamic_timeout_ratio=2.0, dynamic_timeout_warmup_steps=1, task_timeout_s=8, max_attempts=1,
        explorer_timeout_s=1000, max_staleness=9,
    )  # fmt: skip
    harness.beat()
    harness.task("e", batch_type="eval")
    harness.wait(2)
    harness.finished("e", batch_type="eval", experience=None)
    harness.task("a")
    harness.wait(9)
    assert harness.machine.ledger.counters.timed_attempts == 1
    (order,) = dispatches(harness.task("b"))
    assert order.timeout_s == 8.0, "never above the task's own"


def straggling(**settings: Any) -> tuple[Harness, Dispatch]:
    """A batch of four of which three took a second, and the fourth goes on; e1 is idle."""
    harness = Harness(batch_size=4, straggler_factor=3.0, explorer_timeout_s=1000, **settings)
    harness.beat("e0", slots=4)
    orders = [order for name in "abcd" for order in dispatches(harness.task(name))]
    harness.wait(1)
    for order in orders[:3]:
        harness.finished(order.task.task_id)
    harness.beat("e1")
    return harness, orders[3]


def test_a_slow_task_gets_a_second_attempt_and_the_first_to_end_counts() -> None:
    harness, slow = straggling()
    assert dispatches(harness.wait(2)) == []
    (second,) = dispatches(harness.wait(2))
    assert (second.task.task_id, second.attempt, second.explorer) == ("d", 2, "e1")
    assert dispatches(harness.wait(20)) == [], "two at most"
    harness.restart()
    effects = harness.finished("d", name="e1", attempt=2)
    assert [(c.explorer, c.attempt) for c in cancels(effects)] == [(slow.explorer, 1)]
    (entry,) = [e for e in batches(effects)[-1].manifest if e.task_id == "d"]
    assert [part.attempt for part in entry.parts] == [2]
    assert facts(harness.finished("d")) == [Fact.LATE_RESULT]
    assert [e.free for e in harness.machine.fleet.live()] == [4, 4]


def test_a_second_attempt_that_fails_leaves_the_first_alone() -> None:
    harness, _ = straggling(max_attempts=3)
    harness.wait(4)
    assert dispatches(failed(harness, "d", name="e1", attempt=2)) == []
    assert [d.attempt for d in dispatches(harness.wait(1))] == [3], "there is one more try"
    harness.finished("d", attempt=1)
    assert harness.machine.ledger.counters.finalized == 1


def test_there_is_no_second_attempt_without_tries_left_or_without_another_explorer() -> None:
    harness, _ = straggling(max_attempts=1)
    assert dispatches(harness.wait(20)) == []
    harness, _ = straggling()
    harness.beat("e1", state="draining")
    assert dispatches(harness.wait(20)) == []
    assert dispatches(harness.beat("e2")) == []
    assert [d.explorer for d in dispatches(harness.wait(1))] == ["e2"]


def test_beside_another_attempt_that_does_all_runs_none_is_kept() -> None:
    harness = Harness(batch_size=2, group_size=6, straggler_factor=2, explorer_timeout_s=1000)
    for name in ("e0", "e1"):
        harness.beat(name, slots=1)
    harness.task("a")
    harness.task("b")
    harness.finished("b", name="e1")
    assert [d.attempt for d in dispatches(harness.wait(30))] == [2]
    assert dispatches(broken_off(harness, 0, 2)) == []
    assert statuses(harness.finished("a", name="e1", attempt=2)) == [("a", "completed")]
