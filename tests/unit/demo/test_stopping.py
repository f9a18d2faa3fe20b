import pytest

from workers.demo.lesson import AHEAD, DemoTurn, StoppingRule

UP = [0.98, 0.99, 1.0, 0.98]


@pytest.mark.parametrize(
    ("rewards", "due"),
    [
        ([0.1], False),
        (UP[:3], False),
        (UP, True),
        ([0.1, *UP], True),
        ([1.0, 1.0, 1.0, 0.97], False),
        ([1.0, 1.0, 1.0, 1.0, 0.9, 1.0, 1.0, 1.0], False),
    ],
)
def test_a_check_is_due_once_the_reward_stays_up(rewards: list[float], due: bool) -> None:
    trained = len(rewards)
    assert StoppingRule(100, reward_up=0.98).turn(trained, trained, rewards) is (
        DemoTurn.CHECK if due else DemoTurn.PRODUCE
    )
    assert StoppingRule(100, reward_up=None).turn(trained, trained, rewards) is DemoTurn.PRODUCE


def test_what_was_produced_ahead_is_trained_before_a_check_and_may_put_it_off() -> None:
    course = StoppingRule(100, reward_up=0.98)
    assert course.turn(5, 4, UP) is DemoTurn.WAIT
    assert course.turn(5, 5, [*UP, 0.9]) is DemoTurn.PRODUCE
    assert course.turn(5, 5, [*UP, 0.98]) is DemoTurn.CHECK


class Run:
    """A mesh of which each step has this reward; stands in for the demo's."""

    def __init__(self, course: StoppingRule, reward: float) -> None:
        self.course, self.reward = course, reward
        self.produced = self.trained = 0
        self.versions_checked: list[int] = []

    def go(self, exact: list[float]) -> int:
        while True:
            match self.course.turn(self.produced, self.trained, [self.reward] * self.trained):
                case DemoTurn.PRODUCE:
                    assert self.produced < self.trained + AHEAD
                    self.produced += 1
                case DemoTurn.WAIT:
                    assert self.trained < self.produced
                    self.trained += 1
                case DemoTurn.CHECK:
                    self.versions_checked.append(self.trained)
                    self.course.checked(exact.pop(0), self.trained)
                case DemoTurn.END:
                    return self.trained


def test_it_ends_with_the_version_that_has_passed_or_after_all_steps() -> None:
    run = Run(StoppingRule(100, reward_up=0.98), 0.99)
    assert run.go([0.9, 0.995, 1.0]) == run.versions_checked[-1] == run.produced
    assert run.versions_checked == [5, 10, 15]
    # Without one digit at one place a tenth of the prompts lose one word of four.
    for reward in (0.975, 0.98):
        assert Run(StoppingRule(30, reward_up=0.98), reward).go([0.9] * 30) == 30
    assert Run(StoppingRule(30, reward_up=None), 1.0).go([]) == 30
