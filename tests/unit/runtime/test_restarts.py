import signal
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.runtime.restarts import LIVED_S, SETTINGS_STATUS, Fate, Restarts

STATUSES = st.one_of(st.integers(-64, 255))
ENDS = st.lists(st.tuples(STATUSES, st.floats(0, 10 * LIVED_S)), max_size=40)


@given(ENDS, st.integers(0, 8), st.booleans())
def test_every_end_has_the_fate_of_its_reason(ends: list[tuple[int, float]], most: int, work_ends: bool) -> None:
    restarts, row = Restarts(most, work_ends=work_ends), 0
    for status, ran_s in ends:
        verdict = restarts.ended(status, ran_s)
        row = 0 if ran_s >= LIVED_S else row
        if status == 0 and work_ends:
            assert verdict.fate is Fate.DONE
        elif status == SETTINGS_STATUS or row >= most:
            assert verdict.fate is Fate.GIVEN_UP
        else:
            assert verdict.fate is Fate.AGAIN
            assert 1 <= verdict.pause_s <= 60
            row += 1
        assert verdict.why
        if verdict.fate is not Fate.AGAIN:
            return


@given(st.lists(st.floats(0, LIVED_S, exclude_max=True), min_size=7, max_size=7))
def test_what_ends_at_once_again_and_again_waits_longer_each_time_and_is_given_up(lives: list[float]) -> None:
    restarts = Restarts()
    verdicts = [restarts.ended(1, ran_s) for ran_s in lives]
    assert [verdict.fate for verdict in verdicts] == [Fate.AGAIN] * 6 + [Fate.GIVEN_UP]
    assert all(after.pause_s == 2 * before.pause_s for before, after in pairwise(verdicts[:6]))
    assert verdicts[-1].why == "ended with status 1, once more after 6 starts"


def test_what_ends_now_and_then_is_started_for_ever() -> None:
    restarts = Restarts()
    assert {restarts.ended(-signal.SIGKILL, LIVED_S).pause_s for _ in range(1000)} == {1.0}


def test_the_reason_is_said() -> None:
    assert Restarts().ended(-signal.SIGKILL, 0).why == "was ended by SIGKILL, as the kernel does where memory is short"
    assert "setting" in Restarts().ended(SETTINGS_STATUS, 0).why
