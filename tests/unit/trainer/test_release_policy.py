"""When steps are saved, staged and told of: a model that carries the decisions out and keeps the promises in mind."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from workers.trainer.release_policy import AnnounceTrained, Mode, Note, ReleasePolicy, SaveCheckpoint, StageVersion


def test_a_durable_version_is_told_of_at_its_rename_while_the_next_step_trains() -> None:
    made = ReleasePolicy("durable", 1)
    assert made.trained(1, publish=True) == [SaveCheckpoint(1), StageVersion(1)]
    assert made.must_wait(2, publish=True)
    assert made.saved(1) == [AnnounceTrained(1, publish=True)]
    assert not made.must_wait(2, publish=True)
    assert made.trained(2, publish=True) == [SaveCheckpoint(2), StageVersion(2)]


def test_a_staged_version_is_told_of_at_once_and_every_third_step_is_saved() -> None:
    made = ReleasePolicy("staged", 3)
    assert made.trained(1, publish=True) == [StageVersion(1), Note(1), AnnounceTrained(1, publish=True)]
    assert made.trained(2, publish=False) == [Note(2), AnnounceTrained(2, publish=False)]
    assert made.trained(3, publish=True) == [
        StageVersion(3),
        Note(3),
        AnnounceTrained(3, publish=True),
        SaveCheckpoint(3),
    ]
    assert not made.must_wait(4, publish=True)
    assert made.trained(4, publish=True) == [StageVersion(4), Note(4), AnnounceTrained(4, publish=True)]
    assert made.saved(3) == []


def test_a_version_that_is_wanted_later_is_made_durable_first() -> None:
    made = ReleasePolicy("durable", 10)
    made.trained(1, publish=False)
    assert made.wanted(1) == [SaveCheckpoint(1), StageVersion(1)]
    assert made.saved(1) == [AnnounceTrained(1, publish=True)]
    assert made.wanted(1) == [StageVersion(1), AnnounceTrained(1, publish=True)], "it is durable already"
    staged = ReleasePolicy("staged", 10)
    staged.trained(1, publish=False)
    assert staged.wanted(1) == [StageVersion(1), AnnounceTrained(1, publish=True)]


@given(mode=st.sampled_from(["durable", "staged"]), interval=st.integers(1, 5), publish=st.booleans())
def test_the_last_step_is_saved_whatever_the_interval(mode: Mode, interval: int, publish: bool) -> None:
    assert SaveCheckpoint(7) in ReleasePolicy(mode, interval).trained(7, publish=publish, last=True)


class Promises(RuleBasedStateMachine):
    """Steps, renames and wishes in any order; what is done is written down."""

    mode: Mode
    interval: int

    def __init__(self) -> None:
        super().__init__()
        self.states = ReleasePolicy(self.mode, self.interval, durable=0)
        self.step = 0
        self.noted, self.durable, self.staged = 0, {0}, set[int]()
        self.saving: int | None = None
        self.told: list[AnnounceTrained] = []

    def carry_out(self, actions: Any) -> None:
        for action in actions:
            match action:
                case Note(step):
                    self.noted = step
                case SaveCheckpoint(step):
                    assert self.saving is None, "one at a time"
                    self.saving = step
                case StageVersion(step):
                    assert step == self.step, "the engine has these weights now"
                    self.staged.add(step)
                case AnnounceTrained(step, publish):
                    assert step in self.durable or step <= self.noted, "what is heard can be repeated"
                    assert not publish or step in self.staged
                    assert not publish or self.mode == "staged" or step in self.durable
                    assert not self.told or step >= self.told[-1].step, "in their order"
                    self.told.append(action)

    @rule(publish=st.booleans(), last=st.booleans())
    def train(self, publish: bool, last: bool) -> None:
        if self.states.must_wait(self.step + 1, publish=publish, last=last):
            self.rename()
        self.step += 1
        self.carry_out(self.states.trained(self.step, publish=publish, last=last))

    @precondition(lambda self: self.step > 0)
    @rule()
    def want(self) -> None:
        if AnnounceTrained(self.step, publish=True) in self.told or self.step in self.staged:
            return
        if self.states.saving != self.step and self.states.must_wait(self.step, publish=True):
            self.rename()
        self.carry_out(self.states.wanted(self.step))

    @precondition(lambda self: self.saving is not None)
    @rule()
    def rename(self) -> None:
        step, self.saving = self.saving, None
        assert step is not None
        self.durable.add(step)
        self.carry_out(self.states.saved(step))

    @invariant()
    def nothing_is_kept_for_long(self) -> None:
        assert self.states.saving == self.saving
        if self.saving is None:
            assert {tell.step for tell in self.told} == set(range(1, self.step + 1)), "every step is told of"
        if self.mode == "staged":
            assert {tell.step for tell in self.told} == set(range(1, self.step + 1)), "at once"
            assert self.step - max(self.durable) < 2 * self.interval, "a crash costs two intervals at most"


@pytest.mark.parametrize("mode", ["durable", "staged"])
@pytest.mark.parametrize("interval", [1, 3])
def test_promises_hold_in_any_order(mode: Mode, interval: int) -> None:
    case = type("Case", (Promises,), {"mode": mode, "interval": interval})
    run_state_machine_as_test(case, settings=settings(max_examples=40, stateful_step_count=25))
