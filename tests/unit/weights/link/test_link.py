"""Waiting on a link, with broadcasts that are played."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch

from trinity_bus import awake
from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.link.link import Link


class PlayedWork:
    """A broadcast that behaves as its script says, one word for each wait."""

    def __init__(self, script: Iterator[str]) -> None:
        self._script = script
        self._completed = False
        self._error: str | None = None

    def is_completed(self) -> bool:
        return self._completed

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._completed:
            if self._error is not None:
                raise RuntimeError(self._error)
            return True
        word = next(self._script)
        self._completed = word != "silent"
        if word == "broken":
            self._error = "Connection closed by peer\nmore"
            raise RuntimeError(self._error)
        if word != "done":
            raise RuntimeError("Operation timed out!")
        return True


class PlayedGroup:
    def __init__(self, *script: str) -> None:
        self._script = iter(script)

    def broadcast(self, tensors: list[Any], options: Any) -> PlayedWork:
        return PlayedWork(self._script)


def wait(*script: str, limit_s: float = 5, cancelled: bool = False) -> None:
    link = Link(PlayedGroup(*script), 0, "gloo")
    event = threading.Event()
    if cancelled:
        event.set()
    link.wait(link.broadcast(torch.zeros(1)), awake.now() + limit_s, event)


@pytest.mark.parametrize("script", [("done",), ("silent", "silent", "done"), ("silent", "just now")])
def test_a_wait_that_runs_out_is_taken_up_again(script: tuple[str, ...]) -> None:
    wait(*script)


def test_a_broken_broadcast_a_deadline_and_a_cancellation_end_it() -> None:
    with pytest.raises(LinkError, match=r"the link broke: Connection closed by peer$"):
        wait("silent", "broken")
    with pytest.raises(LinkError, match="deadline passed"):
        wait("silent", limit_s=-1)
    with pytest.raises(LinkError, match="cancelled"):
        wait("silent", cancelled=True)
