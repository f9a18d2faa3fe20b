"""Both ends of a link that carries versions, on real gloo between threads."""

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch

from tests.support.narrowing import some
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.link.end import LinkEnd

BUCKET = 1 << 20
SIZES = (BUCKET, BUCKET, BUCKET - 77, 5)


def version() -> list[torch.Tensor]:
    return [torch.arange(size, dtype=torch.int64).mul(7 + i).to(torch.uint8) for i, size in enumerate(SIZES)]


@dataclass
class Pair:
    """Two channels that have met, and both ends of a link."""

    sending: Channel
    taking: Channel
    buffers: list[torch.Tensor] = field(default_factory=lambda: [torch.zeros(n, dtype=torch.uint8) for n in SIZES])
    arrived: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bytes = version()
        self.sender = LinkEnd(self.sending, "gloo", 0, None)
        self.taker = LinkEnd(self.taking, "gloo", 1, None)

    def send(self) -> Callable[[], LinkError | None]:
        """Send in a thread. What comes of it is known by the call that is returned."""
        done: list[LinkError | None] = []

        def run() -> None:
            try:
                self.sender.move(self.bytes, lambda _: None)
                done.append(None)
            except LinkError as error:
                done.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def result() -> LinkError | None:
            thread.join(20)
            return done[0]

        return result

    def take(self) -> None:
        self.taker.move(self.buffers, self.arrived.append)

    def is_whole(self) -> bool:
        return all(torch.equal(*both) for both in zip(self.bytes, self.buffers, strict=True))

    def close(self) -> None:
        for end in (self.sender, self.taker):
            end.close()
        for channel in (self.sending, self.taking):
            channel.close()


def met(timeout_s: float) -> tuple[Channel, Channel]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    sending, taking = (Channel(one, timeout_s=timeout_s, cancelled=threading.Event()) for one in (ours, theirs))
    sending.secure(b"key", "trainer")
    taking.secure(b"key", "member")
    return sending, taking


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(*met(10))
    yield made
    made.close()


def test_a_version_comes_whole_and_the_next_over_the_same_link(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that a bucket has several parts, of which the last is smaller.
    monkeypatch.setattr("trinity_bus.weights.link.end._PART", 300_000)
    for _ in range(2):
        sent = pair.send()
        pair.take()
        assert sent() is None
        assert pair.is_whole()
        pair.bytes[1] += 1
        link = pair.taker._link
    assert pair.taker._link is link
    assert pair.arrived == 2 * [0, 1, 2, 3]
    assert not pair.sender.still_uses


def test_what_was_under_way_when_the_other_side_was_lost_is_known_and_ends_within_moments(pair: Pair) -> None:
    pair.bytes.pop()
    sent = pair.send()
    pair.taker.move(pair.buffers[:-1], pair.arrived.append)
    assert sent() is None
    # Nobody sends any more.
    link = some(pair.taker._link)
    pair.sending.close()
    with pytest.raises(LinkError, match="the other side is gone"):
        pair.take()
    assert pair.taker.still_uses
    assert link.in_flight


def test_nobody_at_the_other_end_fails_the_meeting_by_its_limit() -> None:
    pair = Pair(*met(0.5))
    with pytest.raises(LinkError, match="the other side was silent"):
        pair.take()
    pair.close()
