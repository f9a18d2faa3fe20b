"""Contributions: accepted like a rollout's answer, once, or refused by name."""

from typing import Any

import msgspec
import pytest

from schemas import Contribute, ExperiencePiece, Position
from schemas.errors import RecordError
from tests.support.simulation.harness import Harness, answers, batches, errors, facts, replies, statuses
from tests.unit.schemas.record_strategies import small_group
from trinity_bus.coordination import Examined, Fact, Finding, Uncountable
from trinity_bus.coordination.events.contributions import Examination


def test_contributions_fill_the_batch_and_are_named_by_its_manifest() -> None:
    harness = Harness(batch_size=2)
    harness.trained(0)
    first = harness.contribute("a")
    assert errors(first) == [None]
    assert [(b.state, b.accepted_task_count) for b in batches(first)] == [("pending", 1)]
    assert answers(first) == [], "nobody knows yet whether it is fresh enough for its batch"
    second = harness.contribute("b")
    assert [b.state for b in batches(second)] == ["running", "finalizing", "finalized"]
    assert statuses(second) == [("a", "completed"), ("b", "completed")]
    final = batches(second)[-1]
    assert [
        (e.task_id, e.version_min, [p.position.partition for p in e.parts if p.position]) for e in final.manifest
    ] == [("a", 0, [1]), ("b", 0, [1])]
    assert final.metrics["rollout/reward/mean"] == 0.75
    assert final.metrics["experience_pipeline/experience_count"] == 4.0


def test_what_is_sent_twice_counts_once() -> None:
    harness = Harness(batch_size=2)
    first = harness.contribute("a", command_id="x")
    again = harness.contribute("a", command_id="x")
    assert replies(first) == replies(again)
    assert errors(harness.contribute("a")) == ["known_task"]
    assert len(harness.machine.ledger.tasks) == 1
    harness.restart()
    assert replies(harness.contribute("a", command_id="x")) == replies(first)
    assert errors(harness.contribute("a")) == ["known_task"]
    assert statuses(harness.contribute("b")) == [("a", "completed"), ("b", "completed")]
    assert errors(harness.contribute("a")) == ["known_task"], "answered"
    assert errors(Harness(batch_size=1).begun("a").contribute("a")) == ["known_task"], "a task of anybody"


def test_what_a_contribution_covers_is_known_with_it() -> None:
    harness = Harness(batch_size=4)
    assert errors(harness.contribute("a", covers=["x", "y"])) == [None]
    for _ in range(2):
        assert errors(harness.contribute("x")) == ["known_task"]
        refused = harness.contribute("b", covers=["z", "y"])
        assert (errors(refused), "'y'" in replies(refused)[0].detail) == (["known_task"], True)
        assert errors(harness.contribute("c", covers=["a"])) == ["known_task"]
        harness.restart()
    assert errors(harness.contribute("z")) == [None], "what is refused covers nothing"
    with pytest.raises(RecordError, match="more ids than there are samples"):
        harness.contribute("d", covers=["1", "2", "3"])


@pytest.mark.parametrize(
    ("versions", "error"),
    [((1, 2), None), ((0, 2), "too_stale"), ((2, 3), "unknown_version"), ((-1, 2), "unknown_version")],
)
def test_its_versions_are_known_and_fresh_enough(versions: tuple[int, int], error: str | None) -> None:
    harness = Harness(batch_size=1, max_staleness=0, max_inflight_batches=4)
    harness.trained(0)
    harness.contribute("a")
    harness.trained(1)
    harness.trained(2)
    effects = harness.contribute("b", version_min=versions[0], version_max=versions[1])
    assert errors(effects) == [error]
    assert (Fact.CONTRIBUTION_REFUSED in facts(effects)) == (error is not None)


def test_before_anybody_has_trained_the_first_version_is_fresh() -> None:
    harness = Harness(batch_size=1, max_staleness=0)
    for name in ("a", "b", "c"):
        assert statuses(harness.contribute(name)) == [(name, "completed")]
    assert errors(harness.contribute("d", version_min=1, version_max=1)) == ["unknown_version"]


def test_one_whose_batch_gets_its_place_too_late_fails_and_is_not_trained_on() -> None:
    harness = Harness(batch_size=2, max_staleness=0).begun()
    harness.trained(0)
    assert errors(harness.contribute("a")) == [None]
    # Another batch is full first: batch 2 needs version 1.
    for name in ("x", "y"):
        harness.task(name, batch_id="mine", batch_size=2)
    ended = harness.contribute("b") + harness.task("c")
    assert errors(ended) == ["too_stale"]
    assert [(r.task_id, r.status) for r in answers(ended)] == [("a", "failed")]
    assert "too stale: drawn with version 0, its batch needs 1" in (answers(ended)[0].error or "")


@pytest.mark.parametrize("keep", [True, False])
def test_of_a_batch_without_a_place_nothing_contributed_counts(keep: bool) -> None:
    harness = Harness(batch_size=2)
    harness.contribute("a")
    cancelled = harness.cancel("train-000001", return_partial_tasks=keep)
    assert statuses(cancelled) == [("a", "aborted")]
    assert batches(harness.contribute("b"))[-1].completed_task_count == 1


def test_who_runs_the_machine_may_have_found_something() -> None:
    harness = Harness()
    assert errors(harness.contribute("a", Uncountable("beyond_the_log", "there is no record at experiences/0@7"))) == [
        "beyond_the_log"
    ]
    assert harness.machine.ledger.tasks == {}


def test_not_more_is_taken_than_tasks() -> None:
    harness = Harness(batch_size=1, max_open_tasks=1, max_inflight_batches=1)
    harness.task("a")
    assert errors(harness.contribute("b")) == ["over_limit"]
    many = [ExperiencePiece(samples=1, position=Position(partition=0, offset=n)) for n in range(3)]
    assert errors(Harness(batch_size=16_384).contribute("c", pieces=many)) == ["over_limit"]


PIECE, OTHER = (
    ExperiencePiece(samples=len(small_group()), position=Position(partition=0, offset=offset)) for offset in (0, 1)
)


def asked(**changes: Any) -> Contribute:
    group = small_group()
    values: dict[str, Any] = {
        "client": "c",
        "command_id": "1",
        "producer": "me",
        "task_id": group.task_id,
        "pieces": [PIECE],
        "version_min": min(group.versions[:, 2].tolist()),
        "version_max": max(group.versions[:, 2].tolist()),
    }
    return Contribute(**values | changes)


def examined(command: Contribute, records: list[Any]) -> Finding:
    examination = Examination(command)
    wrong = examination.misnamed()
    for piece, record in zip(command.pieces, records, strict=True):
        wrong = wrong or examination.add(piece, record)
    return wrong or examination.finding()


def mine(**changes: Any) -> Any:
    return msgspec.structs.replace(small_group(), **{"explorer": "me", "batch_type": "train", **changes})


def test_records_are_what_they_are_said_to_be() -> None:
    found = examined(asked(), [mine()])
    assert isinstance(found, Examined), found
    assert (found.attempt, found.workflow) == (mine().attempt, mine().workflow)
    assert len(found.runs) == len(set(mine().run_ids.tolist()))


@pytest.mark.parametrize(
    ("command", "records"),
    [
        pytest.param(asked(), [b"something else"], id="no experiences"),
        pytest.param(asked(), [mine(task_id="another")], id="another task"),
        pytest.param(asked(), [mine(explorer="explorer-0")], id="another author"),
        pytest.param(asked(producer=None), [mine()], id="the client is no author"),
        pytest.param(asked(), [mine(batch_type="eval")], id="an evaluation"),
        pytest.param(asked(version_max=10_000), [mine()], id="other versions"),
        pytest.param(asked(version_min=-1), [mine()], id="of no version"),
        pytest.param(asked(pieces=[PIECE, PIECE]), [mine(), mine()], id="one record twice"),
        pytest.param(asked(pieces=[PIECE, OTHER]), [mine(), mine(attempt=2)], id="of two attempts"),
        pytest.param(asked(pieces=[PIECE, OTHER]), [mine(), mine(task_id="another")], id="the second of another task"),
    ],
)
def test_what_they_are_not_is_refused(command: Contribute, records: list[object]) -> None:
    found = examined(command, records)
    assert isinstance(found, Uncountable)
    assert found.error == "wrong_record"
