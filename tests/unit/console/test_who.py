import pytest

from tests.support.narrowing import some
from trinity_bus.console.web.who import MAX_LOGINS, SESSION_S, Logins, host_is_ours
from trinity_bus.runtime.ports import is_loopback


def test_a_cookie_says_who_logged_in_until_it_ends() -> None:
    sessions = Logins()
    cookie, viewer = sessions.begin("operator", 1000.0), sessions.begin("viewer", 1000.0)
    assert some(sessions.visitor(cookie, 1000.0 + SESSION_S - 1)).may_act
    assert not some(sessions.visitor(viewer, 1000.0)).may_act
    assert sessions.visitor(cookie, 1000.0 + SESSION_S) is None
    sessions.end(viewer)
    assert sessions.visitor(viewer, 1000.0) is None


def test_a_cookie_is_of_one_login_of_this_process_and_the_oldest_ends_where_there_are_many() -> None:
    sessions = Logins()
    cookie = sessions.begin("viewer", 0.0)
    assert Logins().visitor(cookie, 1.0) is None
    for wrong in (cookie[:-1], f"{cookie}x", "", "\udcff"):
        assert sessions.visitor(wrong, 1.0) is None
    sessions = Logins()
    cookies = [sessions.begin("operator", 0.0) for _ in range(MAX_LOGINS + 1)]
    assert [sessions.visitor(cookie, 1.0) is None for cookie in cookies[:2]] == [True, False]
    sessions = Logins()
    assert len({some(sessions.visitor(sessions.begin("operator", 0.0), 1.0)).proof for _ in range(2)}) == 2


OURS = ["127.0.0.1:8900", "localhost", "LOCALHOST:1", "[::1]:8900", "127.9.9.9"]
OTHERS = ["evil.test", "127.0.0.1.evil.test", "localhost.evil.test:8900", "", "localhost:1:2", "a b", "::1", "10.0.0.1"]


@pytest.mark.parametrize("host", [*OURS, *OTHERS])
def test_names_of_this_machine_are_ours_and_one_that_somebody_else_leads_here_is_not(host: str) -> None:
    assert host_is_ours(host) == (host in OURS)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::", "example.test"])  # noqa: S104 - told apart
def test_loopback(host: str) -> None:
    assert is_loopback(host) == host.endswith("1")
