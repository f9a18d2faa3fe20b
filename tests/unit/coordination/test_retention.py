"""What may be deleted: never anything that somebody may still need, and everything else in the end; and where the turns
of a task lie, which heartbeats tell, restarts keep and the next attempt is told.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    Position,
    ResultPart,
    RollBack,
    Rollback,
    RunningAttempt,
)
from schemas.topics import EXPERIENCES, TASKS, TURNS
from tests.support.fakes.mesh_records import entry, finalized
from tests.support.simulation.harness import Harness, cancels, dispatches
from trinity_bus.coordination.retention import (
    BATCHES_KEPT,
    MAX_NOTED,
    VERSIONS_KEPT,
    Retention,
    RetentionSnapshot,
    without_lost,
)
from workers.coordinator.retention import first_turns

FOREVER = 1 << 60


def batch(batch_id: str, *positions: Position, batch_type: str = "train", state: str = "finalized") -> BatchRecord:
    entries = [
        entry(f"{batch_id}-{number}", ResultPart(attempt=1, samples=1, position=at))
        for number, at in enumerate(positions)
    ]
    return finalized(1, batch_id=batch_id, batch_type=batch_type, state=BatchLifecycleState(state), manifest=entries)


def at(offset: int, partition: int = 0) -> Position:
    return Position(partition=partition, offset=offset)


def look(**changes: Any) -> RetentionSnapshot:
    given_: dict[str, Any] = {
        "consumed": {},
        "begins": {},
        "ends": {0: 100},
        "running": frozenset(),
        "counting": (),
        "turns": (),
        "aged": {(EXPERIENCES.name, p): FOREVER for p in range(8)} | {(TASKS.name, p): FOREVER for p in range(8)},
    }
    return RetentionSnapshot(**given_ | changes)


def twice(retention: Retention, given_: RetentionSnapshot) -> dict[tuple[str, int], int]:
    retention.look(given_)
    return retention.look(given_)


def test_what_is_read_and_old_goes_and_nothing_else_of_the_inputs() -> None:
    consumed = {(TASKS.name, 0): 50, (TASKS.name, 1): 7, (TASKS.name, 2): 9}
    aged = {(TASKS.name, 0): 30, (TASKS.name, 1): FOREVER, (TASKS.name, 2): FOREVER}
    begins = {(TASKS.name, 2): 9}
    found = twice(Retention(), look(consumed=consumed, aged=aged, begins=begins))
    assert found == {(TASKS.name, 0): 30, (TASKS.name, 1): 7}


def test_nothing_goes_at_the_first_look() -> None:
    assert Retention().look(look(consumed={(TASKS.name, 0): 50})) == {}


def test_an_untrained_batch_keeps_its_experiences_until_no_checkpoint_needs_them() -> None:
    retention = Retention()
    retention.batch("b1", 10, batch("b1", at(40), at(20), at(5, partition=1)))
    retention.batch("b2", 11, batch("b2", at(60)))
    ends = {0: 100, 1: 50, 2: 7}
    before = look(ends=ends)
    kept = {(EXPERIENCES.name, 0): 20, (EXPERIENCES.name, 1): 5, (EXPERIENCES.name, 2): 7}
    assert twice(retention, before) == kept, "no trainer was heard"
    retention.trained(10)
    assert twice(retention, before) == kept
    retention.trained(11)
    assert twice(retention, before) == {(EXPERIENCES.name, p): n for p, n in ((0, 60), (1, 50), (2, 7))}
    retention.trained(12)
    assert twice(retention, before) == {(EXPERIENCES.name, p): n for p, n in ends.items()}


def test_what_counts_in_an_open_batch_stays() -> None:
    assert twice(Retention(), look(counting=[at(33), at(44)])) == {(EXPERIENCES.name, 0): 33}


def test_what_a_running_attempt_may_have_written_stays_until_it_has_ended() -> None:
    retention = Retention()
    for end in (10, 20, 30):
        assert retention.look(look(ends={0: end}, running=frozenset({("t", 1)}))) == {}
    # A new one runs all the time, and the first has ended: it may have written since it began, and not before.
    assert retention.look(look(ends={0: 40}, running=frozenset({("t", 2)}))) == {}
    assert retention.look(look(ends={0: 50}, running=frozenset({("t", 2)}))) == {(EXPERIENCES.name, 0): 30}


def test_an_attempt_that_never_ends_costs_no_memory() -> None:
    retention = Retention()
    for end in range(10 * MAX_NOTED):
        retention.look(look(ends={0: end}, running=frozenset({("t", 1)})))
    assert len(retention._noted) <= MAX_NOTED + 1


def test_ended_batches_and_versions_are_forgotten_after_a_while_and_untrained_ones_never() -> None:
    retention = Retention()
    retention.batch("needed", 0, batch("needed", at(1)))
    retention.batch("open", 1, batch("open", state="running"))
    for number in range(BATCHES_KEPT + 3):
        retention.batch(f"e{number}", 2 + number, batch(f"e{number}", batch_type="eval"))
    for number in range(VERSIONS_KEPT + 2):
        retention.version(f"policy/{number}", is_there=True)
    assert retention.forgettable() == (["e0", "e1", "e2"], ["policy/0", "policy/1"])
    for number in range(3):
        retention.batch(f"e{number}", 5000, None)
    retention.version("policy/0", is_there=False)
    retention.version("policy/1", is_there=False)
    assert retention.forgettable() == ([], [])
    retention.trained(1)
    assert retention.forgettable()[0] == ["needed"]


def test_a_manifest_never_names_what_is_gone() -> None:
    record = batch("b", at(5), at(15), at(3, partition=1))
    sound = without_lost(record, {0: 10, 1: 0}, {0: 16, 1: 4})
    assert [entry.status for entry in sound.manifest] == ["failed", "completed", "completed"]
    assert sound.manifest[0].parts == []
    assert sound.manifest[0].error == "its experience at experiences/0@5 was gone before the batch ended"
    assert sound.failed_task_count == 1
    assert without_lost(record, {0: 5, 1: 3}, {0: 16, 1: 4}) is record
    assert [e.status for e in without_lost(record, {0: 0, 1: 0}, {0: 15, 1: 4}).manifest][1] == "failed"
    assert without_lost(record, {0: 0}, {0: 16}).manifest[2].status == "failed", "of a partition that there is not"


class Mesh(RuleBasedStateMachine):
    """A mesh of one partition, whose decisions are committed late and may be lost, against what it needs."""

    def __init__(self) -> None:
        super().__init__()
        self.retention = Retention()
        self.experiences: list[tuple[str, int]] = []  # the log: which attempt wrote it
        self.begin = 0
        self.batches_log: list[tuple[str, list[int]]] = []
        self.read = 0
        self.needs_from = 0
        self.number = 0
        # Of the coordinator, decided and committed: attempts that run, with what they have written; what counts.
        self.running: dict[tuple[str, int], list[int]] = {}
        self.counting: set[int] = set()
        self.ended: list[tuple[str, list[int]]] = []
        self.committed = self.saved()
        self.has_committed = False  # since the last look

    def saved(self) -> tuple[dict[tuple[str, int], list[int]], set[int]]:
        return dict(self.running), set(self.counting)

    @rule()
    def dispatch(self) -> None:
        self.number += 1
        self.running["t", self.number] = []

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.running[key].append(len(self.experiences))
        self.experiences.append(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), counts=st.booleans())
    def end(self, data: st.DataObject, counts: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        written = self.running.pop(key)
        if counts and written:
            self.counting.add(written[0])

    @precondition(lambda self: self.counting)
    @rule()
    def finalize(self) -> None:
        self.number += 1
        self.ended.append((f"b{self.number}", sorted(self.counting)))
        self.counting.clear()

    @rule(counts=st.booleans())
    def at_once(self, counts: bool) -> None:
        """A whole batch between two commits."""
        self.dispatch()
        key = ("t", self.number)
        self.running[key].append(len(self.experiences))
        self.experiences.append(key)
        written = self.running.pop(key)
        if counts:
            self.counting.add(written[0])
            self.finalize()

    @rule()
    def commit(self) -> None:
        self.batches_log += self.ended
        self.ended = []
        self.committed = self.saved()
        self.has_committed = True

    @rule()
    def crash(self) -> None:
        """Another coordinator goes on from the last commit; attempts may have written meanwhile."""
        running, counting = self.committed
        self.running, self.counting, self.ended = dict(running), set(counting), []
        self.committed = self.saved()
        self.retention, self.read = self.retention.anew(), 0

    @precondition(lambda self: self.needs_from < len(self.batches_log))
    @rule()
    def train(self) -> None:
        self.needs_from += 1
        self.retention.trained(self.needs_from)

    @rule()
    def look(self) -> None:
        """As the shell does it: when what was decided at the last look is committed, and read."""
        if not self.has_committed:
            self.commit()
        self.has_committed = False
        for offset in range(self.read, len(self.batches_log)):
            name, positions = self.batches_log[offset]
            self.retention.batch(name, offset, batch(name, *map(at, positions)))
        self.read = len(self.batches_log)
        cuts = self.retention.look(
            look(
                begins={(EXPERIENCES.name, 0): self.begin},
                ends={0: len(self.experiences)},
                running=frozenset(self.running),
                counting=[at(offset) for offset in self.counting],
            )
        )
        self.begin = max(self.begin, cuts.get((EXPERIENCES.name, 0), 0))

    @invariant()
    def nothing_needed_is_gone(self) -> None:
        running, counting = self.committed
        needed = [*self.counting, *counting]
        needed += [offset for written in (*self.running.values(), *running.values()) for offset in written]
        needed += [offset for _, positions in self.ended for offset in positions]
        needed += [offset for _, positions in self.batches_log[self.needs_from :] for offset in positions]
        assert all(offset >= self.begin for offset in needed), (self.begin, sorted(needed))

    def teardown(self) -> None:
        self.running.clear()
        self.counting.clear()
        self.commit()
        self.needs_from = len(self.batches_log)
        self.retention.trained(self.needs_from)
        for _ in range(3):
            self.look()
        assert self.begin == len(self.experiences), "in the end all is gone that nobody needs"


TestMesh = Mesh.TestCase
TestMesh.settings = settings(max_examples=150, stateful_step_count=40)


def place(offset: int) -> Position:
    return Position(partition=3, offset=offset)


def beat(harness: Harness, attempt: int, offset: int, name: str = "e0", incarnation: str = "1") -> None:
    harness.beat(name, incarnation, running=[RunningAttempt(task_id="a", attempt=attempt, turns=place(offset))])


def test_the_next_attempt_is_told_where_the_first_turn_lies_whatever_restarts() -> None:
    harness = Harness(batch_size=1, max_attempts=4).begun()
    (first,) = dispatches(harness.task("a"))
    assert first.turns is None
    beat(harness, 1, 17)
    harness.restart()
    assert list(first_turns(harness.machine)) == [place(17)]
    (second,) = dispatches(harness.beat(incarnation="2"))
    assert (second.attempt, second.turns) == (2, place(17))
    harness.restart()
    beat(harness, 2, 29, incarnation="2")
    (third,) = dispatches(harness.beat(incarnation="3"))
    assert (third.attempt, third.turns) == (3, place(17)), "of all attempts the first"
    harness.finished("a", incarnation="3", attempt=3)
    assert list(first_turns(harness.machine)) == []


@pytest.mark.parametrize("waits", [False, True])
def test_what_versions_drew_that_are_discarded_is_not_gone_on_with(waits: bool) -> None:
    harness = Harness(batch_size=1, max_attempts=4)
    harness.beat()
    harness.trained(0)
    harness.synced(0, 1)
    harness.task("a")
    beat(harness, 1, 17)
    if waits:
        harness.beat(state="draining", running=[])
    assert list(first_turns(harness.machine)) == [place(17)]
    harness.command(RollBack(client="c", command_id="1", model="policy", version=0, reason="bad"))
    assert list(first_turns(harness.machine)) == []
    harness.restart()
    assert list(first_turns(harness.machine)) == []
    # The stopped attempt may not have heard of it.
    beat(harness, 1, 17)
    back = Rollback(to=0, through=0, reason="bad")
    (again,) = dispatches(harness.trained(0, incarnation="t2", rollback=back))
    assert (again.attempt, again.turns, again.discarded) == (2, None, 1)
    beat(harness, 2, 29)
    (further,) = dispatches(harness.beat(incarnation="2"))
    assert (further.attempt, further.turns, further.discarded) == (3, place(29), 1)


@pytest.mark.parametrize("pool", [None, "judge"])
def test_an_attempt_with_fixed_weights_may_go_on_from_a_discarded_version_unless_it_is_of_another_pool(
    pool: str | None,
) -> None:
    harness = Harness(batch_size=1, max_attempts=4)
    harness.beat("fixed", follows="none", pool=pool, model_version=9)
    harness.beat("e1")
    harness.trained(0)
    harness.synced(0, 1, name="e1")
    harness.beat("e1", state="draining")
    (begun,) = dispatches(harness.task("a", pool=pool))
    assert begun.explorer == "fixed"
    rolled_back = harness.command(RollBack(client="c", command_id="1", model="policy", version=0, reason="bad"))
    assert [cancel.attempt for cancel in cancels(rolled_back)] == ([] if pool else [1])


def test_what_an_explorer_says_of_attempts_that_are_not_its_own_is_passed_over() -> None:
    harness = Harness(batch_size=1).begun("a")
    beat(harness, 1, 17, name="e1")
    beat(harness, 9, 17)
    assert list(first_turns(harness.machine)) == []


def test_turns_are_deleted_when_they_are_old_and_no_open_task_needs_them() -> None:
    aged = {(TURNS.name, 3): 40, (TURNS.name, 4): 5}
    assert twice(Retention(), look(aged=aged)) == {(TURNS.name, 3): 40, (TURNS.name, 4): 5}
    kept = twice(Retention(), look(aged=aged, turns=[place(29), place(17)]))
    assert kept == {(TURNS.name, 3): 17, (TURNS.name, 4): 5}
