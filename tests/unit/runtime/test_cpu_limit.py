import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from trinity_bus.chat import renderer
from trinity_bus.chat.renderer import limited


def spin() -> None:
    while True:
        try:
            for _ in range(1000):
                """It computes."""
        except Exception:  # noqa: BLE001 - of a program that may be anything
            """It keeps every error that it can."""


def test_what_never_ends_is_broken_off_and_its_thread_goes_on() -> None:
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"0\.1 s"):
            limited(0.1, spin)
    assert limited(0.1, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        limited(1.0, lambda: 1 / 0)


def test_each_thread_has_a_limit_of_its_own_and_waiting_takes_none_of_it() -> None:
    over = threading.Event()
    threading.Timer(1.5, over.set).start()
    with ThreadPoolExecutor(2) as pool:
        ends, never = pool.submit(limited, 0.5, lambda: over.wait(60)), pool.submit(limited, 0.1, spin)
        assert ends.result()
        assert isinstance(never.exception(), TimeoutError)


def test_a_forked_process_has_a_watch_of_its_own() -> None:
    assert limited(1.0, lambda: 7) == 7
    child = os.fork()
    if child == 0:
        try:
            limited(0.1, spin)
        except TimeoutError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_where_there_was_no_room_for_a_thread_the_next_call_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "_watch", renderer._Watch())
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_room)
        with pytest.raises(RuntimeError, match="new thread"):
            limited(60.0, lambda: 7)
    with pytest.raises(TimeoutError):
        limited(0.1, lambda: all(True for _ in range(300_000_000)))


def no_room(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
