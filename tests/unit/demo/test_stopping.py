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


def test_a_digit_that_is_never_said_at_one_place_goes_on_being_trained() -> None:
    rule = StopRule()
    # Without it a tenth of the prompts lose one word of four.
    rewards = [0.1, *[0.98] * 4]
    assert rule.is_due(rewards)
    assert not rule.has_learned(0.9, len(rewards))
    # Checks take time: the next is due after as many steps as the first.
    for _ in range(3):
        rewards.append(0.98)
        assert not rule.is_due(rewards)
    rewards.append(0.98)
    assert rule.is_due(rewards)
    assert rule.has_learned(0.995, len(rewards))
