"""What clients ask for, and what they are answered; one story each."""

from typing import Any

import pytest

from schemas import CommandReply, SkippedBatch
from tests.support.story import (
    TRACE,
    Story,
    batches,
    cancels,
    dispatches,
    errors,
    facts,
    refusals,
    replies,
    statuses,
)
from trinity_bus.coordination import Fact, Remember, Reply, Skip, requests
from trinity_bus.coordination.limits import MAX_UNFILLED_TASKS


def one_reply(commands: list[Any]) -> CommandReply:
    (reply,) = replies(commands)
    return reply


def submitted(story: Story, batch_id: str, tasks: int = 2, **fields: Any) -> None:
    """A client's batch with all its tasks, ``<batch>-0``, ``<batch>-1`` ..."""
    assert errors(story.submit(batch_id, tasks, **fields)) == [None]
    for number in range(tasks):
        story.task(f"{batch_id}-{number}", batch_id=batch_id, batch_type=fields.get("batch_type", "train"))


# -- submit ----------------------------------------------------------------------------------------------------------


def test_a_batch_from_its_submission_to_its_result() -> None:
    story = Story()
    story.beat()
    commands = story.submit("b", 2)
    assert [(b.batch_id, b.state, b.expected_task_count) for b in batches(commands)] == [("b", "pending", 2)]
    assert next(c for c in commands if isinstance(c, Reply)).traceparent == TRACE
    assert dispatches(story.task("x", batch_id="b")) == []
    assert len(dispatches(story.task("y", batch_id="b"))) == 2
    assert replies(story.finalize("b")) == [], "it waits for the batch"
    story.finished("x")
    commands = story.finished("y")
    reply = one_reply(commands)
    assert (reply.client, reply.command_id, reply.batch_id, reply.error) == ("client-1", "finalize-b", "b", None)
    assert reply.result is not None
    assert (reply.result.state, reply.result.finished_task_count) == ("finalized", 2)
    assert reply.result.metrics == batches(commands)[-1].metrics
    assert reply.result.metrics["rollout/finished_task_count"] == 2.0


def test_a_batch_that_is_active_or_has_ended_is_not_submitted_again() -> None:
    story = Story()
    story.beat()
    submitted(story, "b")
    reply = one_reply(story.submit("b", command_id="again"))
    assert (reply.error, reply.detail) == ("already_active", "Batch b is already active.")
    story.abort("b")
    assert errors(story.submit("b", command_id="later")) == ["batch_closed"]
    assert errors(story.submit("large", 20_000)) == ["batch_too_large"]


def test_a_command_that_is_sent_again_is_answered_the_same_way_again() -> None:
    story = Story(max_inflight_batches=1)
    story.beat()
    submitted(story, "b")
    before = dict(story.store)
    assert errors(story.submit("b")) == [None]
    assert story.store == before
    assert errors(story.submit("b", client="client-2")) == ["already_active"]
    assert replies(story.finalize("b", 5.0)) == []
    assert replies(story.finalize("b", 5.0)) == []
    assert errors(story.wait(7)) == ["timeout"], "asked twice, answered once"
    assert errors(story.finalize("b", 5.0)) == ["timeout"]
    story.restart()
    assert errors(story.finalize("b", 5.0)) == ["timeout"]
    assert errors(story.submit("b")) == [None]
    story.finished("b-0")
    story.finished("b-1")
    first = story.finalize("b", command_id="other")
    assert first == story.finalize("b", command_id="other")
    assert one_reply(first).result is not None


def test_tasks_that_do_not_fit_their_submitted_batch_are_refused() -> None:
    story = Story()
    story.submit("b", 1, batch_type="eval")
    assert refusals(story.task("x", batch_id="b")) == ["batch_mismatch"]
    assert refusals(story.task("x", batch_id="b", batch_type="eval", batch_size=3)) == ["batch_mismatch"]
    assert refusals(story.task("x", batch_id="b", batch_type="eval", batch_size=1)) == []
    assert refusals(story.task("y", batch_id="b", batch_type="eval")) == ["batch_full"]


# -- finalize --------------------------------------------------------------------------------------------------------


def test_finalize_says_what_is_wrong_before_it_touches_anything() -> None:
    story = Story()
    story.beat()
    submitted(story, "b")
    story.submit("open", None)
    before = dict(story.store)
    expected = {
        "x": ("unknown_batch", "Batch x is not registered."),
        "b": ("wrong_type", "Batch b is train, expected eval."),
    }
    for batch_id, said in expected.items():
        reply = one_reply(story.finalize(batch_id, 0.0, batch_type="eval"))
        assert (reply.error, reply.detail) == said
    assert errors(story.finalize("open")) == ["open_batch"]
    after = {key: value for key, value in story.store.items() if not key.startswith("replies/")}
    assert after == {key: value for key, value in before.items() if not key.startswith("replies/")}


def test_all_who_wait_get_the_same_result_and_so_does_who_comes_late() -> None:
    story = Story()
    story.beat()
    submitted(story, "b")
    for number in range(3):
        assert replies(story.finalize("b", client=f"client-{number}")) == []
    story.finished("b-0")
    story.restart()
    commands = story.finished("b-1")
    assert [reply.client for reply in replies(commands)] == ["client-0", "client-1", "client-2"]
    story.restart()
    late = one_reply(story.finalize("b", client="late"))
    assert {str(reply.result) for reply in (*replies(commands), late)} == {str(late.result)}
    assert errors(story.finalize("b", client="other", batch_type="eval")) == ["wrong_type"]


def test_out_of_time_a_train_batch_goes_on_and_nothing_is_lost() -> None:
    story = Story(explorer_timeout_s=1000)
    story.beat()
    submitted(story, "b")
    story.finished("b-0")
    story.finalize("b", 5.0)
    reply = one_reply(story.wait(6))
    assert (reply.error, reply.detail) == ("timeout", "Timeout waiting for batch b.")
    assert errors(story.finalize("b", 0.0, command_id="at-once")) == ["timeout"]
    story.finalize("b", 5.0, command_id="patient")
    ended = story.finished("b-1")
    assert len(batches(ended)[-1].manifest) == 2
    assert errors(ended) == [None]


def test_the_default_patience_is_what_all_attempts_may_take() -> None:
    story = Story(task_timeout_s=10, max_attempts=2, explorer_timeout_s=1000)
    story.beat(slots=1)
    story.submit("b", 2)
    story.finalize("b")
    assert errors(story.wait(19)) == []
    assert errors(story.wait(2)) == ["timeout"]


def test_out_of_time_an_eval_batch_ends_with_what_it_has() -> None:
    story = Story(explorer_timeout_s=1000)
    story.beat()
    submitted(story, "1/held", batch_type="eval")
    submitted(story, "2/held", batch_type="eval")
    story.finished("1/held-0", batch_type="eval", experience=None)
    for batch_id in ("1/held", "2/held"):
        story.finalize(batch_id, 3.0, batch_type="eval")
    commands = story.wait(4)
    assert [(r.result.finished_task_count, r.error) for r in replies(commands) if r.result] == [(1, None), (0, None)]
    assert statuses(commands) == [("1/held-1", "aborted"), ("2/held-0", "aborted"), ("2/held-1", "aborted")]
    assert [c.task_id for c in cancels(commands)] == ["1/held-1", "2/held-0", "2/held-1"]
    (first, second) = [b for b in batches(commands) if b.state == "finalized"]
    assert (first.completed_task_count, first.aborted_task_count, second.aborted_task_count) == (1, 1, 2)
    assert first.metrics["eval/held/finished_task_count"] == 1.0
    assert [entry.status for entry in first.manifest] == ["completed", "aborted"]
    assert facts(story.finished("1/held-1", batch_type="eval")) == [Fact.LATE_RESULT]


def test_an_eval_batch_whose_tasks_never_came_ends_with_nothing() -> None:
    story = Story()
    story.beat()
    story.submit("1/held", 3, batch_type="eval")
    story.task("x", batch_id="1/held", batch_type="eval")
    commands = story.finalize("1/held", 0.0, batch_type="eval")
    assert statuses(commands) == [("x", "aborted")]
    assert [b.state for b in batches(commands)] == ["finalizing", "finalized"]
    assert errors(commands) == [None]
    assert refusals(story.task("y", batch_id="1/held", batch_type="eval")) == ["batch_closed"]
    assert story.machine.wants_tasks()
    assert not story.machine.ledger.batches


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_a_batch_without_tasks_waits_until_it_is_finalized(kind: str) -> None:
    story = Story(explorer_timeout_s=100)
    story.beat()
    story.submit("0/b", 0, batch_type=kind)
    assert story.wait(30) == []
    commands = story.finalize("0/b", batch_type=kind)
    assert [(b.state, b.sequence, b.manifest) for b in batches(commands)] == [
        ("finalizing", 0, []),
        ("finalized", 0, []),
    ]
    result = one_reply(commands).result
    assert result is not None
    prefix = "rollout" if kind == "train" else "eval/b"
    assert (result.finished_task_count, result.metrics) == (0, {f"{prefix}/finished_task_count": 0.0})
    story.task("x", batch_id="next", batch_size=1)
    assert [b.sequence for b in batches(story.finished("x"))] == [1, 1], "it took no place in training"


def test_a_batch_that_waits_its_turn_in_training_is_a_timeout_and_finalized_later() -> None:
    story = Story(max_staleness=5, explorer_timeout_s=1000)
    story.beat()
    submitted(story, "first", 1)
    submitted(story, "second", 2, min_wait_num=1)
    story.finished("second-0")
    story.finalize("second", 2.0)
    commands = story.wait(3)
    assert [b.state for b in batches(commands)] == ["finalizing"]
    assert errors(commands) == ["timeout"]
    ended = story.finished("first-0")
    assert [(b.batch_id, b.state) for b in batches(ended)][-2:] == [("first", "finalized"), ("second", "finalized")]
    assert one_reply(story.finalize("second", command_id="later")).result is not None


def test_waiting_clients_have_their_whole_time_again_after_a_restart() -> None:
    story = Story(explorer_timeout_s=1000)
    submitted(story, "b")
    story.finalize("b", 10.0)
    story.wait(8)
    story.restart()
    assert errors(story.wait(8)) == []
    assert errors(story.wait(3)) == ["timeout"]


def test_a_batch_whose_result_is_forgotten_is_still_known_to_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    monkeypatch.setattr(story.machine.kept.outcomes.memory, "_capacity", 1)
    for batch_id in ("a", "b"):
        story.submit(batch_id, 0)
        story.finalize(batch_id)
    assert errors(story.finalize("b", client="late")) == [None]
    assert errors(story.finalize("a", client="late")) == ["batch_closed"]


def test_only_so_many_wait_for_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_FINALIZERS", 2)
    story = Story()
    submitted(story, "b")
    waited = [errors(story.finalize("b", client=f"client-{number}")) for number in range(3)]
    assert waited == [[], [], ["invalid"]]


# -- abort and cancel ------------------------------------------------------------------------------------------------


def test_an_aborted_batch_leaves_nothing_behind_but_its_name() -> None:
    story = Story()
    story.beat()
    submitted(story, "b")
    story.finished("b-0")
    story.finalize("b", client="waiting")
    commands = story.abort("b", reason="a wrong idea")
    assert [(c.task_id, c.reason) for c in cancels(commands)] == [("b-1", "a wrong idea")]
    assert statuses(commands) == [("b-1", "aborted")]
    (record,) = batches(commands)
    assert (record.state, record.reason, record.manifest) == ("aborted", "a wrong idea", [])
    assert record.aborted_task_count == 1
    assert [(r.client, r.error, r.result and r.result.state) for r in replies(commands)] == [
        ("waiting", None, "aborted"),
        ("client-1", None, None),
    ]
    assert facts(story.finished("b-1")) == [Fact.LATE_RESULT]
    assert refusals(story.task("c", batch_id="b")) == ["batch_closed"]
    assert errors(story.abort("b", command_id="again")) == [None]
    assert errors(story.abort("never-known")) == [None]
    assert not story.machine.ledger.batches
    assert not story.machine.ledger.tasks
    result = one_reply(story.finalize("b", client="late")).result
    assert result is not None
    assert result.state == "aborted"


def test_an_aborted_batch_can_tell_what_it_had() -> None:
    story = Story(max_repeat_times_per_runner=1, group_size=2)
    story.beat(slots=8)
    submitted(story, "b", 3)
    for attempt in (1, 2):
        story.finished("b-0", attempt=attempt, completed_runs=1, total_runs=1, samples=1)
    story.finished("b-1", attempt=1, completed_runs=1, total_runs=1, samples=1)
    commands = story.abort("b", keep_partial_results=True)
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
    story = Story()
    story.beat()
    submitted(story, "b", 3)
    story.finished("b-1")
    commands = story.cancel("b", restart_runners=True)
    assert statuses(commands) == [("b-0", "aborted"), ("b-2", "aborted")]
    assert [(c.task_id, c.restart_runner) for c in cancels(commands)] == [("b-0", True), ("b-2", True)]
    ended = batches(commands)[-1]
    assert (ended.state, ended.sequence, ended.completed_task_count, ended.aborted_task_count) == ("finalized", 1, 1, 2)
    assert errors(story.cancel("b", command_id="again")) == [None]


def test_tasks_that_are_cancelled_while_their_batch_waits_do_not_run() -> None:
    story = Story(max_inflight_batches=1, max_staleness=5)
    story.beat()
    submitted(story, "first", 1)
    submitted(story, "second", 1)
    story.submit("third", 2)
    story.task("third-0", batch_id="third")
    assert statuses(story.cancel("second")) == [("second-0", "aborted")]
    assert statuses(story.cancel("third")) == [("third-0", "aborted")]
    story.restart()
    ended = batches(story.finished("first-0"))
    assert [(b.batch_id, b.state, b.sequence) for b in ended] == [
        ("first", "finalizing", 1),
        ("first", "finalized", 1),
        ("second", "running", 2),
        ("second", "finalizing", 2),
        ("second", "finalized", 2),
    ]
    assert [d.task.task_id for d in dispatches(story.task("third-1", batch_id="third"))] == ["third-1"]
    assert [e.status for e in batches(story.finished("third-1"))[-1].manifest] == ["aborted", "completed"]


def test_batches_behind_an_aborted_one_move_up_and_need_no_newer_version_than_before() -> None:
    story = Story(batch_size=1, max_inflight_batches=3)
    story.trained(0)
    story.beat(slots=8)
    for name in ("a", "b", "c"):
        story.task(name)
    assert [b.sequence for b in story.machine.ledger.batches.values()] == [1, 2, 3]
    assert [d.task.task_id for d in dispatches(story.abort("train-000001"))] == ["b"], "it needs version 0 now"
    assert [(b.sequence, b.min_version) for b in story.machine.ledger.batches.values()] == [(1, 0), (2, 1)]
    story.restart()
    assert [b.sequence for b in batches(story.finished("b"))] == [1, 1]
    assert story.machine.ledger.counters.sequence == 2


# -- open batches ----------------------------------------------------------------------------------------------------


def test_tasks_of_an_open_batch_are_handed_out_as_they_come_until_it_is_aborted() -> None:
    story = Story()
    story.trained(3)
    story.beat(model_version=3)
    opened = story.submit("open", None)
    assert [(b.state, b.expected_task_count) for b in batches(opened)] == [("pending", None), ("running", None)]
    (order,) = dispatches(story.task("x", batch_id="open"))
    assert order.min_version == 3, "the newest"
    assert statuses(story.finished("x", version_min=3, version_max=3)) == [("x", "completed")]
    story.restart()
    assert refusals(story.task("x", batch_id="open")) == ["duplicate_task"]
    story.task("y", batch_id="open")
    assert statuses(story.cancel("open", return_partial_tasks=True)) == [("y", "aborted")]
    story.task("z", batch_id="open")
    commands = story.abort("open")
    (record,) = batches(commands)
    assert (record.state, record.completed_task_count, record.aborted_task_count) == ("aborted", 1, 2)
    assert not [key for key in story.store if key.startswith("results/") and story.store[key]]
    assert [b.sequence for b in story.machine.ledger.batches.values()] == []


def test_an_idle_open_batch_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_OPEN_BATCHES", 2)
    story = Story()
    story.beat(slots=8)
    for name in ("a", "b"):
        story.submit(name, None)
    story.task("x", batch_id="a")
    assert next((b.batch_id, b.state) for b in batches(story.submit("c", None))) == ("b", "aborted")
    story.task("y", batch_id="c")
    assert errors(story.submit("d", None)) == ["invalid"]


def test_an_idle_open_batch_does_not_keep_others_from_being_filled() -> None:
    story = Story(max_open_tasks=2)
    story.beat()
    story.submit("open", None)
    for number in range(4):
        assert story.machine.wants_tasks()
        story.task(f"t{number}", batch_id=f"b{number}", batch_size=2)


# -- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("producer", "given_up"), [("client-1", "stale"), ("another", "batch-0")])
def test_of_batches_that_are_never_filled_who_has_most_gives_up_its_oldest(producer: str, given_up: str) -> None:
    story = Story(batch_size=2)
    story.submit("stale", 100)
    story.task("s", batch_id="stale")
    aborted = []
    for number in range(MAX_UNFILLED_TASKS // 1024):
        for index in range(1024):
            fields = {"batch_id": f"batch-{number}", "batch_size": 2000, "producer": producer}
            arrived = story.arrived(f"{number}-{index}", **fields)
            commands = story.machine.handle(arrived, story.now)
            aborted += [b.batch_id for b in batches(commands) if b.state == "aborted"]
    assert aborted == [given_up]
    assert story.machine.wants_tasks()


# -- skip ------------------------------------------------------------------------------------------------------------


def finalized(story: Story, batch_id: str, **fields: Any) -> None:
    submitted(story, batch_id, 1, **fields)
    story.finished(f"{batch_id}-0", **({"experience": None} if fields else {}))


def skips(commands: list[Any]) -> list[tuple[str, int, str, str]]:
    records = [command.record for command in commands if isinstance(command, Skip)]
    return [(record.batch_id, record.sequence, record.reason, record.client) for record in records]


def test_a_finalized_batch_is_skipped_also_after_a_restart_and_once_for_each_command() -> None:
    story = Story()
    story.beat()
    finalized(story, "a")
    story.restart()
    commands = story.skip("a")
    assert errors(commands) == [None]
    assert skips(commands) == [("a", 1, "poison", "client-1")]
    again = story.skip("a")
    assert (errors(again), skips(again)) == ([None], [])


def test_only_what_waits_to_be_trained_on_is_skipped() -> None:
    story = Story()
    story.beat()
    assert errors(story.skip("never-was")) == ["unknown_batch"]
    submitted(story, "runs")
    assert errors(story.skip("runs", command_id="1")) == ["not_finalized"]
    story.abort("runs")
    assert errors(story.skip("runs", command_id="2")) == ["not_finalized"]
    finalized(story, "exam", batch_type="eval")
    assert errors(story.skip("exam")) == ["wrong_type"]
    finalized(story, "a")
    story.trained(1)
    assert errors(story.skip("a", command_id="3")) == ["already_trained"]
    # A trainer that comes back with an older checkpoint has yet to train on it.
    story.trained(0, life="t2")
    assert errors(story.skip("a", command_id="4")) == [None]


def test_a_version_is_remembered_with_what_its_lineage_has_skipped() -> None:
    story = Story()
    skipped = [SkippedBatch(batch_id="a", step=1, reason="poison")]
    (published,) = [c.record for c in story.trained(1, batch_id="a", skipped=skipped) if isinstance(c, Remember)]
    assert published.skipped == skipped
