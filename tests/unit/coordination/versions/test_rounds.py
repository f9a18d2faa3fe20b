"""Rounds: who is named for a version, and what happens to a round when a newer version comes."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas import PublishedVersion
from tests.support.effects import written
from tests.support.simulation.harness import Harness, announced, facts, groups
from trinity_bus.coordination import Fact


def mesh(explorers: int, **synchronizer: Any) -> Harness:
    """Explorers that all serve version 0."""
    harness = Harness(explorer_timeout_s=1e6, **synchronizer)
    harness.trained(0)
    for number in range(explorers):
        harness.beat(f"e{number}", model_version=0)
    return harness


def test_a_new_trainer_waits_for_no_round_of_its_former_incarnation() -> None:
    harness = mesh(1)
    harness.trained(1)
    assert groups(harness.trained(1, incarnation="t2")) == [(1, 2, ["e0"])]


def test_who_ran_out_of_time_holds_up_one_version_and_no_other_until_it_answers() -> None:
    harness = mesh(2)
    harness.trained(1)
    harness.synced(1, 1, "e0")
    assert groups(harness.trained(2)) == []
    late = harness.wait(21)
    assert Fact.SYNC_FAILED in facts(late)
    assert groups(late) == [(2, 2, ["e0", "e1"])]
    harness.synced(2, 2, "e0")
    assert groups(harness.trained(3)) == [(3, 3, ["e0", "e1"])], "it is not waited for again"
    harness.synced(3, 3, "e1")
    assert groups(harness.trained(4)) == [], "it answers again, and e0 has yet to"
    assert groups(harness.synced(3, 3, "e0")) == [(4, 3, ["e0", "e1"])]
    harness.synced(4, 3, "e0")
    assert groups(harness.trained(5)) == []


def test_with_fixed_a_version_is_not_left_out_for_a_round_that_lasts() -> None:
    harness = mesh(2, sync_style="fixed")
    harness.trained(1)
    harness.synced(1, 1, "e0")
    assert groups(harness.trained(2)) == [(2, 2, ["e0", "e1"])]


@given(explorers=st.integers(1, 12), most=st.integers(1, 5), each=st.integers(1, 4))
def test_each_explorer_is_named_as_often_as_any_other_however_fast_versions_come(
    explorers: int, most: int, each: int
) -> None:
    harness = mesh(explorers, sync_members=most)
    rounds = math.ceil(explorers / most)
    named = {f"e{number}": 0 for number in range(explorers)}
    version, found = 1, announced(harness.trained(1))
    for number in range(1, 4 * rounds + 1):
        (under_way,) = found
        members = [member.explorer for member in under_way.members]
        assert len(members) <= most
        for _ in range(each):
            version += 1
            assert announced(harness.trained(version)) == []
        for name in members:
            found = announced(harness.synced(under_way.version, under_way.epoch, name))
            named[name] = number
    assert min(named.values()) > 3 * rounds, "nobody waits for longer than all rounds take"


def test_an_announcement_says_in_which_type_is_trained_and_from_which_model_on() -> None:
    harness = mesh(1)
    effects = harness.trained(1, dtype="bfloat16", source="org/model@0123")
    assert [(record.dtype, record.source) for record in announced(effects)] == [("bfloat16", "org/model@0123")]
    assert [e.source for e in written(effects, PublishedVersion)] == ["org/model@0123"]
