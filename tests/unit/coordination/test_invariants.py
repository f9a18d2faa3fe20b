"""Random histories of a whole mesh, and the invariants that hold in each of them.

The coordinator's machine is the real one; clients, explorers, the trainer, the log and the clock are simulated
(``tests.support.simulation``). The coordinator is killed before and after its commits and restored from its changelog,
while the process before it wakes up and is fenced; explorers join, leave, stall, die and come back as new incarnations;
attempts fail, break off and run out of time; events and commands come late, interleaved, and twice; the trainer falls
back to its checkpoint; the clock jumps both ways; several clients submit, finalize, abort and cancel, each other's
batches too.

The invariants, with what each says, are those of ``tests.support.simulation.invariant``.

``INVARIANTS_SEED`` in the environment is where the seeds of the random histories begin, ``INVARIANTS_EXAMPLES`` how
many histories Hypothesis makes up: a search of an hour finds what a minute's does not.
"""

import os
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulation import World, draw_settings, random_history
from tests.support.simulation.histories import happenings
from trinity_bus.coordination import Fact

HISTORIES = 20
EVENTS_EACH = 5000
EVENTS = 100_000  # that the random histories come to, at least, before they are left to end without faults
EXAMPLES = int(os.environ.get("INVARIANTS_EXAMPLES", "60"))
FIRST_SEED = int(os.environ.get("INVARIANTS_SEED", "0"))


pytestmark = pytest.mark.timeout(600)


class Coverage:
    """What the random histories of this run have seen, all together."""

    def __init__(self) -> None:
        self.histories = 0
        self.events = 0
        self.in_pieces = 0
        self.facts: Counter[Fact] = Counter()
        self.refused: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.replies: Counter[str | None] = Counter()

    def add(self, world: World) -> None:
        self.histories += 1
        self.in_pieces += world.invariants.in_pieces
        self.facts += world.invariants.facts
        self.refused += world.invariants.refused
        self.statuses += Counter(result.status for result in world.invariants.results.values())
        self.replies += Counter(reply.error for replies in world.invariants.replies.values() for reply in replies)


@pytest.fixture(scope="module")
def coverage() -> Coverage:
    return Coverage()


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + HISTORIES))
def test_laws_hold_in_long_random_histories(seed: int, coverage: Coverage) -> None:
    world = random_history(seed, EVENTS_EACH)
    coverage.events += world.inputs
    world.heal()
    coverage.add(world)


def test_the_histories_came_to_enough_and_have_seen_everything(coverage: Coverage) -> None:
    if coverage.histories < HISTORIES:
        pytest.skip("not all histories were run")
    assert coverage.events >= EVENTS
    for fact in (
        Fact.ATTEMPT_FAILED,
        Fact.ATTEMPT_TIMED_OUT,
        Fact.EXPLORER_LEFT,
        Fact.EXPLORER_LOST,
        Fact.LATE_RESULT,
        Fact.LATE_SYNC,
        Fact.LATE_VERSION,
        Fact.SPECULATIVE_ATTEMPT,
        Fact.SYNC_FAILED,
        Fact.ZOMBIE_EXPLORER,
        Fact.ZOMBIE_TRAINER,
    ):
        assert coverage.facts[fact], f"no history has seen {fact}"
    assert coverage.in_pieces > HISTORIES, "hardly any answer was in several records"
    assert coverage.statuses.keys() == {"completed", "partial", "failed", "aborted"}
    assert coverage.refused.keys() >= {"batch_closed", "batch_full", "batch_mismatch", "duplicate_task"}
    seen = {None, "already_active", "batch_closed", "open_batch", "timeout", "unknown_batch", "wrong_type"}
    assert coverage.replies.keys() >= seen


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 25), st.integers(1, 8)), max_size=60))
def test_laws_hold_in_histories_that_hypothesis_makes_up(seed: int, chosen: list[tuple[int, int]]) -> None:
    rng = random.Random(seed)  # noqa: S311 - histories, not secrets
    world = World(rng, draw_settings(rng))
    world.explorer_starts()
    world.trainer_starts()
    actions = [action for _, action in happenings(world, rng)]
    for number, times in chosen:
        for _ in range(times):
            actions[number]()
        world.check_size()
    world.heal()
