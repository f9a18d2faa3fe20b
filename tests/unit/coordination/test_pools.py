"""Pools: who answers whose tasks, and what a checkpoint that follows no trainer is spared."""

from typing import Any

import pytest

from schemas import PublishVersion, RollBack, Rollback, UnservedPool
from tests.support.simulation.harness import (
    Harness,
    announced,
    answers,
    batches,
    dispatches,
    facts,
    groups,
    refusals,
)
from trinity_bus.coordination import Effect, Fact


def taken(effects: list[Effect]) -> list[tuple[str, str, int]]:
    return [(d.task.task_id, d.explorer, d.min_version) for d in dispatches(effects)]


def fixed(harness: Harness, name: str, pool: str | None = None, **fields: Any) -> list[Effect]:
    return harness.beat(name, follows="none", pool=pool, model_version=fields.pop("version", -1), **fields)


def test_the_name_of_the_trained_model_names_its_pool() -> None:
    harness = Harness(batch_size=2)
    harness.task("a", pool="policy")
    harness.task("b")
    assert harness.machine.heartbeat("c", "i").unserved == [UnservedPool(pool="policy", parts=2)]
    assert taken(harness.beat("e0", pool="policy")) == [("a", "e0", 0), ("b", "e0", 0)]


def test_once_versions_are_published_a_fixed_checkpoint_is_as_fresh_as_its_version() -> None:
    harness = Harness(batch_size=1, max_staleness=0, max_inflight_batches=3)
    fixed(harness, "old", version=0)
    harness.trained(0)
    assert taken(harness.task("a")) == [("a", "old", 0)]
    assert taken(harness.task("b")) == [], "batch 2 needs version 1"
    harness.trained(1)
    assert taken(fixed(harness, "new", version=1)) == [("b", "new", 1)]


def test_a_fixed_explorer_is_no_member_and_no_version_is_waited_for() -> None:
    harness = Harness(batch_size=1, max_staleness=0)
    fixed(harness, "judge", "judge")
    harness.beat("e0", model_version=-1)
    assert groups(harness.trained(0)) == [(0, 1, ["e0"])]
    harness.synced(0, 1)
    # In time it is still no laggard.
    assert announced(harness.wait(5)) == []
    assert taken(harness.task("a", pool="judge")) == [("a", "judge", 0)]
    ended = harness.finished("a", name="judge", version_min=-1, version_max=-1)
    assert [r.status for r in answers(ended)] == ["completed"]
    assert [b.state for b in batches(ended)] == ["finalizing", "finalized"]
    (batch,) = [b for b in batches(ended) if b.manifest]
    assert batch.manifest[0].version_min == -1
    # The next one needs version 1 of who follows the trainer, and nothing of the judge.
    assert taken(harness.task("b", pool="judge")) == [("b", "judge", 0)]


def test_what_a_fixed_explorer_says_of_weights_is_noted_and_changes_nothing() -> None:
    harness = Harness(batch_size=1)
    fixed(harness, "judge", "judge")
    harness.trained(0)
    assert facts(harness.synced(0, 0, "judge")) == [Fact.LATE_SYNC]
    assert harness.machine.fleet.explorers["judge"].version == -1


def test_only_its_pool_can_judge_that_nobody_has_a_workflow() -> None:
    harness = Harness(batch_size=1)
    harness.beat("e0", workflows=["math"])
    assert refusals(harness.task("a", pool="judge", workflow="grade")) == []
    assert refusals(harness.task("b", workflow="grade")) == ["unknown_workflow"]
    # Somebody of the pool has come, and does not know it either.
    assert refusals(fixed(harness, "judge", "judge", workflows=["math"])) == ["unknown_workflow"]
    assert refusals(harness.task("c", pool="judge", workflow="grade")) == ["unknown_workflow"]


def test_a_rollback_does_not_stop_what_runs_in_a_pool_without_versions() -> None:
    harness = Harness(batch_size=1, max_inflight_batches=2)
    fixed(harness, "judge", "judge")
    harness.beat("e0")
    harness.trained(0)
    harness.synced(0, 1)
    harness.task("a", pool="judge")
    harness.command(RollBack(client="c", command_id="1", model="policy", version=0, reason="bad"))
    harness.trained(0, incarnation="t2", rollback=Rollback(to=0, through=0, reason="bad"))
    assert list(harness.machine.ledger.running) == [("a", 1)]
    assert harness.machine.fleet.explorers["judge"].distrusted is None


@pytest.mark.parametrize("pool", ["judge", None])
def test_an_explorer_may_move_to_another_pool(pool: str | None) -> None:
    harness = Harness(batch_size=1)
    harness.beat("e0", pool="judge" if pool is None else None)
    harness.task("a", pool=pool)
    assert taken(harness.beat("e0", pool=pool)) == [("a", "e0", 0)]


def test_a_choice_of_a_version_moves_nobody_who_follows_nobody() -> None:
    harness = Harness(batch_size=1)
    fixed(harness, "judge", "judge")
    harness.beat("e0", model_version=-1)
    harness.trained(0)
    harness.synced(0, 1)
    harness.trained(1)
    harness.synced(1, 1)
    harness.command(PublishVersion(client="c", command_id="1", model="policy", version=0))
    assert groups(harness.trained(0, again=True)) == [(0, 1, ["e0"])]
