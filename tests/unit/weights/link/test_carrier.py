"""Both ends of a link that carries a version, on real gloo between threads: whole, in pieces, and what goes wrong."""

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch

from tests.support.mesh.waiting import wait_until
from tests.support.narrowing import some
from trinity_bus.weights.carrier import HeldVersion
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError, WeightTransferError
from trinity_bus.weights.layout import PIECE, Span, behind_piece, chunk_hash, piece_bytes, spans
from trinity_bus.weights.link import carrier
from trinity_bus.weights.link.carrier import LinkCarrier, LinkSender, LinkTaker
from trinity_bus.weights.link.link import Link

BUCKET = 1 << 20
SIZES = (BUCKET, BUCKET, BUCKET - 77, 5)


def version() -> list[torch.Tensor]:
    return [torch.arange(size, dtype=torch.int64).mul(7 + i).to(torch.uint8) for i, size in enumerate(SIZES)]


@dataclass
class Pair:
    """Two channels that have met, and both ends of a version."""

    sending: Channel
    taking: Channel
    buffers: list[torch.Tensor] = field(default_factory=lambda: [torch.zeros(n, dtype=torch.uint8) for n in SIZES])
    arrived: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bytes = version()
        self.chunks: list[Span] = spans(SIZES, BUCKET)
        hashes = [chunk_hash(memoryview(self.bytes[b][start:end].numpy())) for b, start, end in self.chunks]
        links = LinkCarrier("gloo")
        self.source = HeldVersion(0, "sum", self.chunks)
        self.source.attach(links.views(self.bytes), proven=len(self.chunks))
        self.goal = HeldVersion(0, "sum", self.chunks, b"".join(hashes))
        self.goal.attach(links.views(self.buffers))
        self.sender: LinkSender = links.sender(self.sending)
        self.taker: LinkTaker = links.taker(self.taking)

    def take(self, limit_s: float | None = None) -> bool:
        return self.taker.chunks(self.goal, self.buffers, self.arrived.append, limit_s)

    def is_whole(self) -> bool:
        return all(torch.equal(*both) for both in zip(self.bytes, self.buffers, strict=True))

    def beside[T](self, call: Callable[[], T]) -> Callable[[], T | LinkError]:
        """Do it in a thread. What it gives, or fails with, is known by the call that is returned."""
        done: list[T | LinkError] = []

        def run() -> None:
            try:
                done.append(call())
            except LinkError as error:
                done.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def result() -> T | LinkError:
            thread.join(20)
            return done[0]

        return result

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


def test_a_version_comes_as_a_whole_and_the_next_over_the_same_link(pair: Pair) -> None:
    for _ in range(2):
        sent = pair.beside(lambda: pair.sender.whole(pair.bytes))
        pair.taker.whole(pair.buffers, pair.arrived.append)
        assert sent() is None
        assert pair.is_whole()
        pair.bytes[1] += 1
        link = pair.taker._link
    assert pair.taker._link is link
    assert pair.arrived == 2 * [0, 1, 2, 3]


def test_pieces_are_proven_and_follow_what_the_sender_has(pair: Pair) -> None:
    pair.source.proven = 1
    sent = pair.beside(lambda: pair.sender.chunks(pair.source, 0))
    took = pair.beside(pair.take)
    for proven in range(2, len(pair.chunks) + 1):
        wait_until(lambda proven=proven: pair.goal.proven == proven - 1)  # type: ignore[misc]
        pair.source.attach(pair.bytes, proven=proven)
    assert sent() is took() is True
    assert pair.is_whole()
    assert pair.arrived == [0, 1, 2, 3]
    assert not pair.sender.still_reads


def test_a_sender_that_is_told_to_stop_says_so_and_goes_on_from_there_later_over_a_new_link(pair: Pair) -> None:
    sent = pair.beside(lambda: pair.sender.chunks(pair.source, 0, lambda _: pair.goal.proven < 3))
    before = list(pair.buffers)
    assert pair.take() is False
    assert sent() is False
    proven = pair.goal.proven
    assert 0 < proven < len(pair.chunks)
    # Asked for, and not come: where something may still come is out of the way.
    bucket = pair.chunks[proven][0]
    assert pair.buffers[bucket] is not before[bucket]
    sent = pair.beside(lambda: pair.sender.chunks(pair.source, proven))
    assert pair.take() is True
    assert sent() is True
    assert pair.is_whole()
    assert pair.arrived == [0, 1, 2, 3]


def test_what_was_under_way_when_the_sender_was_lost_changes_nothing_any_more(pair: Pair) -> None:
    pair.source.proven = 3
    sent = pair.beside(lambda: pair.sender.chunks(pair.source, 0))
    before = list(pair.buffers)
    took = pair.beside(pair.take)
    wait_until(lambda: pair.goal.proven == 3)
    # The other side is gone, as far as the channel tells; its link lives, and still sends into what was asked for.
    pair.taking._connection.shutdown(socket.SHUT_RD)
    assert "the other side is gone" in str(took())
    late = some(pair.sender._link)
    link, there = late, torch.full((PIECE,), 255, dtype=torch.uint8)
    bucket, start, end = pair.chunks[3]
    work = link.broadcast(there[: end - start])
    wait_until(work.is_completed)
    wait_until(lambda: bool((before[bucket][start:end] == 255).all()))
    assert torch.equal(pair.buffers[bucket][:start], pair.bytes[bucket][:start])
    assert not (pair.buffers[bucket][start:end] == 255).all()
    pair.sending.close()
    assert isinstance(sent(), LinkError)


def test_a_piece_that_cannot_be_asked_for_costs_its_own_buffer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(link: Link, tensor: torch.Tensor) -> None:
        link._in_flight.append(tensor)
        raise LinkError("the link broke")

    meeting = pair.beside(lambda: pair.sender.whole([]))
    pair.taker.meet(chunks=False)
    assert meeting() is None
    before = list(pair.buffers)
    monkeypatch.setattr(Link, "broadcast", refuse)
    with pytest.raises(LinkError):
        pair.take()
    assert [now is then for now, then in zip(pair.buffers, before, strict=True)] == [False, True, True, True]


def test_a_chunk_with_other_bytes_goes_no_further(pair: Pair) -> None:
    pair.bytes[1][9] += 1
    sent = pair.beside(lambda: pair.sender.chunks(pair.source, 0))
    with pytest.raises(WeightTransferError, match="chunk 4 has other bytes"):
        pair.take()
    assert pair.goal.proven == 4
    pair.taking.close()
    assert isinstance(sent(), bool | LinkError)


def test_a_sender_that_lives_and_has_nothing_is_waited_for_as_long_as_a_piece_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair(*met(0.5))
    monkeypatch.setattr(carrier, "BEAT_S", 0.1)
    pair.source.proven = 0
    sent = pair.beside(lambda: pair.sender.chunks(pair.source, 0))
    with pytest.raises(LinkError, match="deadline passed"):
        pair.take(1.5)
    assert pair.taker._heard_at > 0
    pair.taking.close()
    assert isinstance(sent(), LinkError)
    pair.close()


def test_a_sender_that_has_a_part_of_a_piece_waits_for_the_rest(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "piece_bytes", lambda _: BUCKET)
    monkeypatch.setattr(carrier, "BEAT_S", 0.1)
    pair.source.proven = 1
    grown, beat = pair.source.grown, pair.sender._beat
    waited: list[int] = []
    beats = 0

    def waits(proven: int, limit_s: float) -> int:
        waited.append(proven)
        return grown(proven, limit_s)

    def beating() -> None:
        nonlocal beats
        before = pair.sender._beat_at
        beat()
        beats += pair.sender._beat_at > before

    monkeypatch.setattr(pair.source, "grown", waits)
    monkeypatch.setattr(pair.sender, "_beat", beating)
    sent = pair.beside(lambda: pair.sender.chunks(pair.source, 0))
    took = pair.beside(pair.take)
    wait_until(lambda: beats >= 4)
    assert len(waited) < 20
    assert pair.goal.proven == 0
    pair.source.attach(pair.bytes, proven=len(pair.chunks))
    assert sent() is took() is True
    assert pair.is_whole()


def test_a_sender_that_says_nothing_is_left_long_before(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(*met(0.5))
    monkeypatch.setattr(LinkSender, "_beat", lambda _: None)
    pair.source.proven = 0
    sent = pair.beside(lambda: pair.sender.chunks(pair.source, 0))
    with pytest.raises(LinkError, match="silent"):
        pair.take(20)
    pair.taking.close()
    assert isinstance(sent(), LinkError)
    pair.close()


def test_nobody_at_the_other_end_fails_the_meeting_by_its_limit() -> None:
    pair = Pair(*met(0.5))
    with pytest.raises(LinkError, match="the other side was silent"):
        pair.take()
    pair.close()


def test_pieces_are_few_and_no_larger_than_moves_in_seconds() -> None:
    assert piece_bytes(48 * BUCKET) < BUCKET // 4
    assert piece_bytes(1 << 40) == 16 << 20
    chunks = spans([8 * BUCKET] * 2, 8 * BUCKET)
    assert behind_piece(chunks, 0, len(chunks), 1) == 1
    assert behind_piece(chunks, 0, len(chunks), BUCKET) == 4
    assert behind_piece(chunks, 0, 3, BUCKET) == 3
    # The last of a bucket.
    assert behind_piece(chunks, 30, len(chunks), BUCKET) == 32
