"""When a command is sent again, and when it is given up."""

from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.client.channel import RetryPolicy, RetryStep


def retry(*, taken: bool = True) -> RetryPolicy:
    return RetryPolicy(0.0, taken=taken, again_s=5.0, silence_s=30.0, outage_s=60.0)


def test_a_command_is_sent_again_until_silence_has_lasted_too_long() -> None:
    one = retry()
    steps = []
    for now in range(0, 31, 5):
        steps.append(one.step(now, None))
        if steps[-1] is RetryStep.AGAIN:
            one.sent(now, taken=True)
    assert steps == [RetryStep.WAIT, *[RetryStep.AGAIN] * 5, RetryStep.GIVE_UP]


def test_a_word_of_the_coordinator_to_anybody_gives_it_the_whole_time_again() -> None:
    one = retry()
    assert one.step(29.0, None) is RetryStep.AGAIN
    one.sent(29.0, taken=True)
    assert one.step(31.0, 25.0) is RetryStep.WAIT
    assert one.step(54.9, 25.0) is RetryStep.AGAIN
    assert one.step(55.0, 25.0) is RetryStep.GIVE_UP


def test_silence_while_the_broker_is_away_counts_against_the_broker() -> None:
    one = retry(taken=False)
    assert one.step(59.0, None) is RetryStep.AGAIN
    one.sent(59.0, taken=False)
    assert one.step(60.0, None) is RetryStep.GIVE_UP
    one.sent(59.5, taken=True)
    # It is back: the coordinator has all its time to answer.
    assert one.step(60.0, None) is RetryStep.WAIT
    assert one.step(89.4, None) is RetryStep.AGAIN
    assert one.step(89.5, None) is RetryStep.GIVE_UP


@given(moments=st.lists(st.tuples(st.integers(0, 10), st.booleans(), st.booleans()), max_size=60), taken=st.booleans())
def test_there_is_always_a_next_moment_and_nobody_waits_for_ever(
    moments: list[tuple[int, bool, bool]], taken: bool
) -> None:
    one, now, heard_at, last = retry(taken=taken), 0.0, None, 0.0
    for gap, hears, is_taken in moments:
        now += gap
        if hears:
            heard_at = last = now
        step = one.step(now, heard_at)
        if step is RetryStep.WAIT:
            assert 0 < one.pause(now, heard_at) <= 5.0
        elif step is RetryStep.AGAIN:
            one.sent(now, taken=is_taken)
        else:
            assert now >= last + 30.0
            assert one.pause(now, heard_at) == 0
            return
    # However often it is sent again, silence ends it.
    assert one.step(now + 200.0, heard_at) is RetryStep.GIVE_UP
