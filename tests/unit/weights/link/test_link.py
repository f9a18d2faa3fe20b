"""Both ends of a link on real gloo between threads, broadcasts that are played, and what needs no GPU of NCCL's."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from trinity_bus.weights import link as module
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.link import Link

BUCKET = 1 << 20
SIZES = (BUCKET, BUCKET, BUCKET - 77, 5)


def met(timeout_s: float) -> tuple[Channel, Channel]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    sending, taking = (Channel(one, timeout_s=timeout_s, cancelled=threading.Event()) for one in (ours, theirs))
    sending.secure(b"key", "trainer")
    taking.secure(b"key", "member")
    return sending, taking


class Pair:
    """Two channels that have met, and both ends of a link."""

    def __init__(self, timeout_s: float) -> None:
        self.bytes = [torch.arange(n, dtype=torch.int64).mul(7 + i).to(torch.uint8) for i, n in enumerate(SIZES)]
        self.buffers = [torch.zeros(n, dtype=torch.uint8) for n in SIZES]
        self.arrived: list[int] = []
        self.channels = met(timeout_s)
        self.sender, self.taker = Link(self.channels[0], "gloo", 0), Link(self.channels[1], "gloo", 1)

    def send(self) -> Callable[[], None]:
        """Send in a thread; the call that is returned waits until that has ended well."""
        sent = threading.Event()

        def run() -> None:
            self.sender.move(self.bytes, lambda _: None)
            sent.set()

        threading.Thread(target=run, daemon=True).start()

        def result() -> None:
            assert sent.wait(20)

        return result

    def take(self, count: int = len(SIZES)) -> None:
        self.taker.move(self.buffers[:count], self.arrived.append)

    def close(self) -> None:
        for one in (self.sender, self.taker, *self.channels):
            one.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(10)
    yield made
    made.close()


def test_a_version_comes_whole_and_the_next_over_the_same_link(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that a bucket has several parts, of which the last is smaller.
    monkeypatch.setattr(module, "_PART", 300_000)
    groups = []
    for _ in range(2):
        sent = pair.send()
        pair.take()
        sent()
        assert all(torch.equal(*both) for both in zip(pair.bytes, pair.buffers, strict=True))
        pair.bytes[1] += 1
        groups.append(pair.taker._group)
    assert groups[0] is groups[1]
    assert pair.arrived == 2 * [0, 1, 2, 3]
    assert not pair.sender.still_uses


def test_what_was_under_way_when_the_other_side_was_lost_is_known_and_ends_within_moments(pair: Pair) -> None:
    pair.bytes.pop()
    sent = pair.send()
    pair.take(len(SIZES) - 1)
    sent()
    # Nobody sends any more.
    pair.channels[0].close()
    with pytest.raises(LinkError, match="the other side is gone"):
        pair.take()
    assert pair.taker.still_uses


def test_nobody_at_the_other_end_fails_the_meeting_by_its_limit() -> None:
    pair = Pair(0.5)
    with pytest.raises(LinkError, match="the other side was silent"):
        pair.take()
    pair.close()


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


@pytest.mark.parametrize(
    ("script", "limit_s", "cancelled", "complaint"),
    [
        (["done"], 5, False, None),
        (["silent", "silent", "done"], 5, False, None),
        (["silent", "just now"], 5, False, None),
        (["silent", "broken"], 5, False, r"the link broke: Connection closed by peer$"),
        (["silent"], -1, False, "deadline passed"),
        (["silent"], 5, True, "cancelled"),
    ],
)
def test_a_wait_that_runs_out_is_taken_up_again_and_what_ends_it_is_said(
    pair: Pair, script: list[str], limit_s: float, complaint: str | None, *, cancelled: bool
) -> None:
    class PlayedGroup:
        def broadcast(self, tensors: list[Any], options: Any) -> PlayedWork:
            return PlayedWork(iter(script))

    pair.taker._group = PlayedGroup()
    if cancelled:
        pair.channels[1].cancelled.set()
    pair.taker.broadcast(torch.zeros(1))
    if complaint is None:
        pair.taker.wait(limit_s)
    else:
        with pytest.raises(LinkError, match=complaint):
            pair.taker.wait(limit_s)


def test_two_ranks_of_nccl_meet_in_the_store_and_one_that_never_comes_is_waited_for_as_long_as_the_limit() -> None:
    store, met_there = HashStore(), threading.Event()

    def first() -> None:
        module._meet(store, 1, timedelta(seconds=5))
        met_there.set()

    threading.Thread(target=first, daemon=True).start()
    module._meet(store, 0, timedelta(seconds=5))
    assert met_there.wait(5)
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        module._meet(HashStore(), 0, timedelta(seconds=0.2))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("before", [None, "0"])
def test_a_link_has_no_watchdog_and_others_keep_theirs(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = module._BLOCKING_WAIT
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    with module.unwatched():
        assert os.environ[name] == "1"
    assert os.environ.get(name) == before
