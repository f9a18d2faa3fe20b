"""What clients ask for, and what they are answered; one scenario each."""

from typing import Any

import pytest

from schemas import BatchSkipped, CommandReply
from tests.support.effects import written
from tests.support.simulation.harness import (
    TRACE,
    Harness,
    batches,
    cancels,
    dispatches,
    errors,
    facts,
    refusals,
    replies,
    statuses,
)
from trinity_bus.coordination import Fact, Write
from trinity_bus.coordination.events import batch_commands
from trinity_bus.coordination.limits import MAX_UNFILLED_TASKS


def one_reply(commands: list[Any]) -> Any:
    (reply,) = replies(commands)
    return reply


def submitted(harness: Harness, batch_id: str, tasks: int = 2, **fields: Any) -> Harness:
    """A client's batch with all its tasks, ``<batch>-0``, ``<batch>-1`` ..."""
    assert errors(harness.submit(batch_id, tasks, **fields)) == [None]
    for number in range(tasks):
        harness.task(f"{batch_id}-{number}", batch_id=batch_id, batch_type=fields.get("batch_type", "train"))
    return harness


def test_a_batch_from_its_submission_to_its_result() -> None:
    harness = Harness().begun()
    commands = harness.submit("b", 2)
    assert [(b.batch_id, b.state, b.expected_task_count) for b in batches(commands)] == [("b", "pending", 2)]
    assert next(c for c in commands if isinstance(c, Write) and isinstance(c.record, CommandReply)).traceparent == TRACE
    assert dispatches(harness.task("x", batch_id="b")) == []
    assert len(dispatches(harness.task("y", batch_id="b"))) == 2
    assert replies(harness.finalize("b")) == [], "it waits for the batch"
    harness.finished("x")
    commands = harness.finished("y")
    reply = one_reply(commands)
    assert (reply.client, reply.command_id, reply.batch_id, reply.error) == ("client-1", "finalize-b", "b", None)
    assert (reply.result.state, reply.result.finished_task_count) == ("finalized", 2)
    assert reply.result.metrics == batches(commands)[-1].metrics
    assert reply.result.metrics["rollout/finished_task_count"] == 2.0


def test_a_batch_that_is_active_or_has_ended_is_not_submitted_again() -> None:
    harness = submitted(Harness().begun(), "b")
    reply = one_reply(harness.submit("b", command_id="again"))
    assert (reply.error, reply.detail) == ("already_active", "Batch b is already active.")
    harness.abort("b")
    assert errors(harness.submit("b", command_id="later")) == ["batch_closed"]
    assert errors(harness.submit("large", 20_000)) == ["batch_too_large"]


def test_a_command_that_is_sent_again_is_answered_the_same_way_again() -> None:
    harness = submitted(Harness(max_inflight_batches=1).begun(), "b")
    before = dict(harness.store)
    assert errors(harness.submit("b")) == [None]
    assert harness.store == before
    assert errors(harness.submit("b", client="client-2")) == ["already_active"]
    assert replies(harness.finalize("b", 5.0)) == []
    assert replies(harness.finalize("b", 5.0)) == []
    assert errors(harness.wait(7)) == ["timeout"], "asked twice, answered once"
    assert errors(harness.finalize("b", 5.0)) == ["timeout"]
    harness.restart()
    assert errors(harness.finalize("b", 5.0)) == ["timeout"]
    assert errors(harness.submit("b")) == [None]
    harness.finished("b-0")
    harness.finished("b-1")
    first = harness.finalize("b", command_id="other")
    assert first == harness.finalize("b", command_id="other")
    assert one_reply(first).result is not None


def test_tasks_that_do_not_fit_their_submitted_batch_are_refused() -> None:
    harness = Harness()
    harness.submit("b", 1, batch_type="eval")
    assert refusals(harness.task("x", batch_id="b")) == ["batch_mismatch"]
    assert refusals(harness.task("x", batch_id="b", batch_type="eval", batch_size=3)) == ["batch_mismatch"]
    assert refusals(harness.task("x", batch_id="b", batch_type="eval", batch_size=1)) == []
    assert refusals(harness.task("y", batch_id="b", batch_type="eval")) == ["batch_full"]


def test_finalize_says_what_is_wrong_before_it_touches_anything() -> None:
    harness = submitted(Harness().begun(), "b")
    harness.submit("open", None)
    before = dict(harness.store)
    expected = {
        "x": ("unknown_batch", "Batch x is not registered."),
        "b": ("wrong_type", "Batch b is train, expected eval."),
    }
    for batch_id, said in expected.items():
        reply = one_reply(harness.finalize(batch_id, 0.0, batch_type="eval"))
        assert (reply.error, reply.detail) == said
    assert errors(harness.finalize("open")) == ["open_batch"]
    after = {key: value for key, value in harness.store.items() if not key.startswith("replies/")}
    assert after == {key: value for key, value in before.items() if not key.startswith("replies/")}


def test_the_default_patience_is_what_all_attempts_may_take() -> None:
    harness = Harness(task_timeout_s=10, max_attempts=2, explorer_timeout_s=1000).begun(slots=1)
    harness.submit("b", 2)
    harness.finalize("b")
    assert errors(harness.wait(19)) == []
    assert errors(harness.wait(2)) == ["timeout"]


def test_out_of_time_an_eval_batch_ends_with_what_it_has() -> None:
    harness = submitted(Harness(explorer_timeout_s=1000).begun(), "1/held", batch_type="eval")
    submitted(harness, "2/held", batch_type="eval")
    harness.finished("1/held-0", batch_type="eval", experience=None)
    for batch_id in ("1/held", "2/held"):
        harness.finalize(batch_id, 3.0, batch_type="eval")
    commands = harness.wait(4)
    assert [(r.result.finished_task_count, r.error) for r in replies(commands) if r.result] == [(1, None), (0, None)]
    assert statuses(commands) == [("1/held-1", "aborted"), ("2/held-0", "aborted"), ("2/held-1", "aborted")]
    assert [c.task_id for c in cancels(commands)] == ["1/held-1", "2/held-0", "2/held-1"]
    (first, second) = [b for b in batches(commands) if b.state == "finalized"]
    assert (first.completed_task_count, first.aborted_task_count, second.aborted_task_count) == (1, 1, 2)
    assert first.metrics["eval/held/finished_task_count"] == 1.0
    assert [entry.status for entry in first.manifest] == ["completed", "aborted"]
    assert facts(harness.finished("1/held-1", batch_type="eval")) == [Fact.LATE_RESULT]


def test_an_eval_batch_whose_tasks_never_came_ends_with_nothing() -> None:
    harness = Harness().begun()
    harness.submit("1/held", 3, batch_type="eval")
    harness.task("x", batch_id="1/held", batch_type="eval")
    commands = harness.finalize("1/held", 0.0, batch_type="eval")
    assert statuses(commands) == [("x", "aborted")]
    assert [b.state for b in batches(commands)] == ["finalizing", "finalized"]
    assert errors(commands) == [None]
    assert refusals(harness.task("y", batch_id="1/held", batch_type="eval")) == ["batch_closed"]
    assert harness.machine.wants_tasks()
    assert not harness.machine.ledger.batches


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_a_batch_without_tasks_waits_until_it_is_finalized(kind: str) -> None:
    harness = Harness(explorer_timeout_s=100).begun()
    harness.submit("0/b", 0, batch_type=kind)
    assert harness.wait(30) == []
    commands = harness.finalize("0/b", batch_type=kind)
    assert [(b.state, b.sequence, b.manifest) for b in batches(commands)] == [
        ("finalizing", 0, []),
        ("finalized", 0, []),
    ]
    result = one_reply(commands).result
    prefix = "rollout" if kind == "train" else "eval/b"
    assert (result.finished_task_count, result.metrics) == (0, {f"{prefix}/finished_task_count": 0.0})
    harness.task("x", batch_id="next", batch_size=1)
    assert [b.sequence for b in batches(harness.finished("x"))] == [1, 1], "it took no place in training"


def test_a_batch_that_waits_its_turn_in_training_is_a_timeout_and_finalized_later() -> None:
    harness = submitted(Harness(max_staleness=5, explorer_timeout_s=1000).begun(), "first", 1)
    submitted(harness, "second", 2, min_wait_num=1)
    harness.finished("second-0")
    harness.finalize("second", 2.0)
    commands = harness.wait(3)
    assert [b.state for b in batches(commands)] == ["finalizing"]
    reply = one_reply(commands)
    assert (reply.error, reply.detail) == ("timeout", "Timeout waiting for batch second.")
    assert errors(harness.finalize("first", 0.0)) == ["timeout"]
    ended = harness.finished("first-0")
    assert [(b.batch_id, b.state) for b in batches(ended)][-2:] == [("first", "finalized"), ("second", "finalized")]
    assert one_reply(harness.finalize("second", command_id="later")).result is not None


def test_waiting_clients_have_their_whole_time_again_after_a_restart() -> None:
    harness = submitted(Harness(explorer_timeout_s=1000), "b")
    harness.finalize("b", 10.0)
    harness.wait(8)
    harness.restart()
    assert errors(harness.wait(8)) == []
    assert errors(harness.wait(3)) == ["timeout"]


def test_a_batch_whose_result_is_forgotten_is_still_known_to_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    monkeypatch.setattr(harness.machine.state.outcomes, "_capacity", 1)
    for batch_id in ("a", "b"):
        harness.submit(batch_id, 0)
        harness.finalize(batch_id)
    assert errors(harness.finalize("b", client="late")) == [None]
    assert errors(harness.finalize("a", client="late")) == ["batch_closed"]


def test_only_so_many_wait_for_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_commands, "MAX_BATCH_WAITERS", 2)
    harness = submitted(Harness(), "b")
    waited = [errors(harness.finalize("b", client=f"client-{number}")) for number in range(3)]
    assert waited == [[], [], ["invalid"]]


def test_an_aborted_batch_leaves_nothing_behind_but_its_name() -> None:
    harness = submitted(Harness().begun(), "b")
    harness.finished("b-0")
    harness.finalize("b", client="waiting")
    commands = harness.abort("b", reason="a wrong idea")
    assert [(c.task_id, c.reason) for c in cancels(commands)] == [("b-1", "a wrong idea")]
    assert statuses(commands) == [("b-1", "aborted")]
    (record,) = batches(commands)
    assert (record.state, record.reason, record.manifest) == ("aborted", "a wrong idea", [])
    assert record.aborted_task_count == 1
    assert [(r.client, r.error, r.result and r.result.state) for r in replies(commands)] == [
        ("waiting", None, "aborted"),
        ("client-1", None, None),
    ]
    assert facts(harness.finished("b-1")) == [Fact.LATE_RESULT]
    assert refusals(harness.task("c", batch_id="b")) == ["batch_closed"]
    assert errors(harness.abort("b", command_id="again")) == [None]
    assert errors(harness.abort("never-known")) == [None]
    assert not harness.machine.ledger.batches
    assert not harness.machine.ledger.tasks
    result = one_reply(harness.finalize("b", client="late")).result
    assert result.state == "aborted"


def test_an_aborted_batch_can_tell_what_it_had() -> None:
    harness = submitted(Harness(max_repeat_times_per_runner=1, group_size=2).begun(slots=8), "b", 3)
    for attempt in (1, 2):
        harness.finished("b-0", attempt=attempt, completed_runs=1, total_runs=1, samples=1)
    harness.finished("b-1", attempt=1, completed_runs=1, total_runs=1, samples=1)
    commands = harness.abort("b", keep_partial_results=True)
    assert statuses(commands) == [("b-1", "partial"), ("b-2", "aborted")]
    (record,) = batches(commands)
    assert [(entry.task_id, entry.status, len(entry.parts)) for entry in record.manifest] == [
        ("b-0", "completed", 2),
        ("b-1", "partial", 1),
        ("b-2", "aborted", 0),
    ]
    assert record.state == "aborted"
    assert record.metrics["rollout/finished_task_count"] == 2.0


def test_cancelled_tasks_end_and_the_batch_goes_on_with_what_it_has() -> None:
    harness = submitted(Harness().begun(), "b", 3)
    harness.finished("b-1")
    commands = harness.cancel("b", restart_runners=True)
    assert statuses(commands) == [("b-0", "aborted"), ("b-2", "aborted")]
    assert [(c.task_id, c.restart_runner) for c in cancels(commands)] == [("b-0", True), ("b-2", True)]
    ended = batches(commands)[-1]
    assert (ended.state, ended.sequence, ended.completed_task_count, ended.aborted_task_count) == ("finalized", 1, 1, 2)
    assert errors(harness.cancel("b", command_id="again")) == [None]


def test_batches_behind_an_aborted_one_move_up_and_need_no_newer_version_than_before() -> None:
    harness = Harness(batch_size=1, max_inflight_batches=3)
    harness.trained(0)
    harness.beat(slots=8)
    for name in ("a", "b", "c"):
        harness.task(name)
    assert [b.sequence for b in harness.machine.ledger.batches.values()] == [1, 2, 3]
    assert [d.task.task_id for d in dispatches(harness.abort("train-000001"))] == ["b"], "it needs version 0 now"
    assert [(b.sequence, b.min_version) for b in harness.machine.ledger.batches.values()] == [(1, 0), (2, 1)]
    harness.restart()
    assert [b.sequence for b in batches(harness.finished("b"))] == [1, 1]
    assert harness.machine.ledger.counters.sequence == 2


def test_tasks_of_an_open_batch_are_handed_out_as_they_come_until_it_is_aborted() -> None:
    harness = Harness()
    harness.trained(3)
    harness.beat(model_version=3)
    opened = harness.submit("open", None)
    assert [(b.state, b.expected_task_count) for b in batches(opened)] == [("pending", None), ("running", None)]
    (order,) = dispatches(harness.task("x", batch_id="open"))
    assert order.min_version == 3, "the newest"
    assert statuses(harness.finished("x", version_min=3, version_max=3)) == [("x", "completed")]
    harness.restart()
    assert refusals(harness.task("x", batch_id="open")) == ["duplicate_task"]
    harness.task("y", batch_id="open")
    assert statuses(harness.cancel("open", return_partial_tasks=True)) == [("y", "aborted")]
    harness.task("z", batch_id="open")
    commands = harness.abort("open")
    (record,) = batches(commands)
    assert (record.state, record.completed_task_count, record.aborted_task_count) == ("aborted", 1, 2)
    assert not [key for key in harness.store if key.startswith("results/") and harness.store[key]]
    assert [b.sequence for b in harness.machine.ledger.batches.values()] == []


def test_an_idle_open_batch_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_commands, "MAX_OPEN_BATCHES", 2)
    harness = Harness().begun(slots=8)
    for name in ("a", "b"):
        harness.submit(name, None)
    harness.task("x", batch_id="a")
    assert next((b.batch_id, b.state) for b in batches(harness.submit("c", None))) == ("b", "aborted")
    harness.task("y", batch_id="c")
    assert errors(harness.submit("d", None)) == ["invalid"]


@pytest.mark.parametrize(("producer", "given_up"), [("client-1", "stale"), ("another", "batch-0")])
def test_of_batches_that_are_never_filled_who_has_most_gives_up_its_oldest(producer: str, given_up: str) -> None:
    harness = Harness(batch_size=2)
    harness.submit("stale", 100)
    harness.task("s", batch_id="stale")
    aborted = []
    for number in range(MAX_UNFILLED_TASKS // 1024):
        for index in range(1024):
            fields = {"batch_id": f"batch-{number}", "batch_size": 2000, "producer": producer}
            arrived = harness.arrived(f"{number}-{index}", **fields)
            commands = harness.machine.handle(arrived, harness.now)
            aborted += [b.batch_id for b in batches(commands) if b.state == "aborted"]
    assert aborted == [given_up]
    assert harness.machine.wants_tasks()


def finalized(harness: Harness, batch_id: str, **fields: Any) -> None:
    submitted(harness, batch_id, 1, **fields)
    without: dict[str, Any] = {"experience": None} if fields else {}
    harness.finished(f"{batch_id}-0", **without)


def skips(commands: list[Any]) -> list[tuple[str, int, str, str]]:
    records = written(commands, BatchSkipped)
    return [(record.batch_id, record.sequence, record.reason, record.client) for record in records]


def test_a_finalized_batch_is_skipped_also_after_a_restart_and_once_for_each_command() -> None:
    harness = Harness().begun()
    finalized(harness, "a")
    harness.restart()
    commands = harness.skip("a")
    assert errors(commands) == [None]
    assert skips(commands) == [("a", 1, "poison", "client-1")]
    again = harness.skip("a")
    assert (errors(again), skips(again)) == ([None], [])


def test_only_what_waits_to_be_trained_on_is_skipped() -> None:
    harness = Harness().begun()
    assert errors(harness.skip("never-was")) == ["unknown_batch"]
    submitted(harness, "runs")
    assert errors(harness.skip("runs", command_id="1")) == ["not_finalized"]
    harness.abort("runs")
    assert errors(harness.skip("runs", command_id="2")) == ["not_finalized"]
    finalized(harness, "exam", batch_type="eval")
    assert errors(harness.skip("exam")) == ["wrong_type"]
    finalized(harness, "a")
    harness.trained(1)
    assert errors(harness.skip("a", command_id="3")) == ["already_trained"]
    # A trainer that comes back with an older checkpoint has yet to train on it.
    harness.trained(0, incarnation="t2")
    assert errors(harness.skip("a", command_id="4")) == [None]
