"""A broker that dies is started again, and one that dies again and again is not."""

from trinity_bus.broker.restarts import Restarts


def test_so_many_starts_are_allowed_within_the_window_and_more_later() -> None:
    restarts = Restarts(limit=2, window_s=10.0)
    assert [restarts.allow(now) for now in (0.0, 1.0, 2.0, 9.9)] == [True, True, False, False]
    assert [restarts.allow(now) for now in (10.0, 10.5, 11.0)] == [True, False, True]
