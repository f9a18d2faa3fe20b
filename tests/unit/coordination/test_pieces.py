"""A group in several records: named whole by results and manifests, kept by retention, and over restarts."""

from collections.abc import Sequence
from typing import Any

import pytest

from schemas import ExperiencePiece, Position
from schemas.batch import MAX_BATCH_PARTS
from schemas.task import MAX_REPEAT_TIMES
from tests.support.simulation.harness import Harness, batches, facts, statuses
from trinity_bus.coordination import Fact
from trinity_bus.coordination.effects import Effect
from trinity_bus.coordination.retention import without_lost
from workers.coordinator.retention import counting

PLACES = [(1, 10), (1, 11), (1, 14)]


def in_pieces(samples: Sequence[int] = (1, 3, 2), **fields: Any) -> dict[str, Any]:
    pieces = [
        ExperiencePiece(samples=count, position=Position(partition=partition, offset=offset))
        for count, (partition, offset) in zip(samples, PLACES * 20, strict=False)
    ]
    return {"experience": None, "samples": sum(samples), "pieces": pieces, **fields}


def manifest(commands: list[Effect]) -> list[list[tuple[int, int, int, int]]]:
    (batch,) = [batch for batch in batches(commands) if batch.state == "finalized"]
    return [
        [(p.attempt, p.samples, p.position.partition, p.position.offset) for p in entry.parts if p.position is not None]
        for entry in batch.manifest
    ]


EXPECTED = [(1, 1, 1, 10), (1, 3, 1, 11), (1, 2, 1, 14)]


def test_an_answer_that_waits_for_other_parts_keeps_its_pieces_over_a_restart() -> None:
    harness = Harness(batch_size=1, group_size=4, max_repeat_times_per_runner=2).begun("a")
    harness.finished("a", **in_pieces())
    harness.restart()
    assert [(p.partition, p.offset) for p in counting(harness.machine)] == PLACES, "retention must leave them alone"
    harness.beat()
    (parts,) = manifest(harness.finished("a", attempt=2, experience=Position(partition=5, offset=5)))
    assert parts == [*EXPECTED, (2, 2, 5, 5)]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({**in_pieces([1, 1]), "samples": 3}, "the rollout has 3 samples, and its pieces are others"),
        ({**in_pieces(), "experience": Position(partition=0, offset=0)}, "and its pieces are others"),
    ],
)
def test_pieces_that_contradict_the_result_are_no_answer(fields: dict[str, Any], why: str) -> None:
    harness = Harness(batch_size=1).begun("a")
    commands = harness.finished("a", **fields)
    assert Fact.ATTEMPT_FAILED in facts(commands)
    assert why in str(commands)


def test_the_pieces_of_a_batch_are_no_more_than_its_record_has_room_for() -> None:
    most = MAX_BATCH_PARTS // 16_384
    harness = Harness(batch_size=16_384).begun()
    harness.submit("large", 16_384)
    for number in range(16_384):
        harness.machine.handle(harness.arrived(f"t{number}", batch_id="large"), 0.0)
    harness.store.update(harness.machine.changes())
    commands = harness.finished("t0", batch_id="large", **in_pieces([1] * (most + 1)))
    assert f"are in {most + 1} records, and a part of a task of this batch may have {most}" in str(commands)
    assert statuses(harness.finished("t1", batch_id="large", **in_pieces([1] * most))) == [("t1", "completed")]
    assert most * 16_384 <= MAX_BATCH_PARTS
    assert most <= MAX_REPEAT_TIMES


@pytest.mark.parametrize("place", [(1, 14), (1, 9)])
def test_a_task_that_has_lost_one_piece_has_failed(place: tuple[int, int]) -> None:
    harness = Harness(batch_size=1).begun("a")
    (batch,) = [b for b in batches(harness.finished("a", **in_pieces())) if b.state == "finalized"]
    partition, offset = place
    begins = {partition: 11} if offset < 10 else {partition: 0}
    ends = {partition: 100} if offset < 10 else {partition: offset}
    (entry,) = without_lost(batch, begins, ends).manifest
    assert (entry.status, entry.parts) == ("failed", [])
    assert without_lost(batch, {1: 10}, {1: 15}) is batch
