"""When the demo stops training: not before every prompt is answered, whatever the mean reward says."""

import pytest

from workers.demo.stopping import StopRule

UP = [0.98, 0.99, 1.0, 0.98]


@pytest.mark.parametrize(
    ("rewards", "due"),
    [
        ([], False),
        (UP[:3], False),
        (UP, True),
        ([0.1, *UP], True),
        ([1.0, 1.0, 1.0, 0.97], False),
        ([1.0, 1.0, 1.0, 1.0, 0.9, 1.0, 1.0, 1.0], False),
    ],
)
def test_a_check_is_due_once_the_reward_stays_up(rewards: list[float], due: bool) -> None:
    assert StopRule().is_due(rewards) is due


def checked(rule: StopRule, rewards: list[float], exact: float) -> bool:
    """Whether the model has learned, once the next check is due and finds this."""
    while not rule.is_due(rewards):
        rewards.append(0.98)
    return rule.has_learned(exact, len(rewards))


def test_a_digit_that_is_never_said_at_one_place_goes_on_being_trained() -> None:
    # Without it a tenth of the prompts lose one word of four.
    rule, rewards = StopRule(), [0.1, *[0.98] * 4]
    assert rule.is_due(rewards)
    assert not any(checked(rule, rewards, 0.9) for _ in range(5))


def test_checks_are_steps_apart_and_two_in_a_row_must_be_without_a_fault() -> None:
    rule = StopRule()
    rewards: list[float] = []
    assert [checked(rule, rewards, exact) for exact in (1.0, 0.995, 1.0, 1.0)] == [False, False, False, True]
    assert len(rewards) == 16
