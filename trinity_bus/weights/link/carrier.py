"""The bytes of a version over links: what ``carrier`` says, over gloo or NCCL.

A version goes as a whole, bucket after bucket, large ones in parts; or, where members pass it on, as *pieces*:
neighbouring chunks of a bucket, which both ends cut alike. Some pieces are under way at once, so that none waits for
the way back::

    who sends                                            who takes
    piece is proven --broadcast----------------------->  (asked for, ``AHEAD`` at once) --each chunk against its hash-->
    now and then: "I live", over the channel             passed on, the next one asked for

==================================  ================================================================================
what fails                          what follows
==================================  ================================================================================
the other side dies                 its channel ends, which every wait looks at; gloo says so, too, or does not
it hangs, or its machine is gone    whoever takes has heard nothing for the channel's time limit, or got no piece in its
                                    own; whoever sends gets rid of no piece within the channel's limit
a chunk has other bytes             ``WeightTransferError``
there is a better holder            said over the channel: the link is given up
==================================  ================================================================================

A broadcast that is under way cannot be stopped: it may write into its buffer until it runs out. So a buffer with pieces
under way is given up with its link, and another one takes its place, with all that was proven. What still reads from a
member's buffers may find the next version's bytes there; whoever is sent them compares them with the hash of a chunk,
and has left by then.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from trinity_bus import awake
from trinity_bus.runtime.device import uses_gpu
from trinity_bus.weights.carrier import BEAT_S, Arrived, Carrier, FrameCarrier, HeldVersion
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError, WeightTransferError
from trinity_bus.weights.layout import behind_piece, piece_bytes
from trinity_bus.weights.link.link import Backend, Link, open_link
from trinity_bus.weights.transport import Method
from trinity_bus.weights.wire import ANSWER, WeightsAnswer

if TYPE_CHECKING:
    import torch
    from torch.distributed import Work

    from trinity_bus.weights.staging import FileBuckets

AHEAD: Final = 4  # The way back for a piece, some milliseconds on a full wire, is hidden behind the others under way
_PART: Final = 64 << 20  # moved at once of a version that goes as a whole
_PARTS: Final = 2  # Under way: one is copied off or onto a GPU while the other is on the wire
_PIECE_S: Final = 10.0  # in which a piece must come in any case: ``pull.transport.CHUNK_S``


class LinkCarrier:
    """A ``Carrier``. A link costs gloo some milliseconds and NCCL far more, so the trainer's is kept."""

    keeps = True

    def __init__(self, backend: Backend, gpu: "torch.device | None" = None) -> None:
        self._backend: Backend = backend
        self._gpu = gpu

    def views(self, buffers: "Sequence[torch.Tensor] | FileBuckets") -> "Sequence[torch.Tensor] | FileBuckets":
        return buffers

    def sender(self, channel: Channel) -> "LinkSender":
        return LinkSender(channel, self._backend, 0, self._gpu)

    def taker(self, channel: Channel) -> "LinkTaker":
        return LinkTaker(channel, self._backend, 1, self._gpu)


class _LeftError(Exception):
    """Others send the rest."""


class _End:
    def __init__(self, channel: Channel, backend: Backend, rank: Literal[0, 1], gpu: "torch.device | None") -> None:
        self._channel = channel
        self._backend: Backend = backend
        self._rank: Literal[0, 1] = rank
        self._gpu = gpu
        self._link: Link | None = None
        self._is_stale = False  # not to be used again, and still open

    def _open(self, at_once: int = AHEAD) -> Link:
        if self._gpu is not None:
            import torch

            # Each thread begins with the machine's first one.
            torch.cuda.set_device(self._gpu)
        if self._is_stale:
            self.close()
        if self._link is None:
            # Who dies meanwhile is noticed by the channel. A machine that has much else to do needs its time for this.
            limit_s = max(self._channel.timeout_s, _PIECE_S)
            self._link = open_link(
                self._channel,
                self._rank,
                backend=self._backend,
                timeout_s=limit_s,
                at_once=at_once,
                # The last of those under way may have to wait for all before it.
                operation_s=at_once * limit_s,
            )
        return self._link

    def _move(self, buffers: "Sequence[torch.Tensor] | FileBuckets", done: Arrived) -> None:
        # Broadcasts buffers one after the other, cut alike at both ends.
        link = self._open(1)
        under_way: deque[tuple[Work, int]] = deque()

        def wait() -> None:
            work, ends = under_way.popleft()
            self._wait(link, work, self._there, self._channel.timeout_s)
            if ends >= 0:
                done(ends)

        for i, buffer in enumerate(buffers):
            for start in range(0, len(buffer), _PART):
                if len(under_way) == _PARTS:
                    wait()
                ends = i if start + _PART >= len(buffer) else -1
                under_way.append((link.broadcast(buffer[start : start + _PART]), ends))
        while under_way:
            wait()

    def _wait(self, link: Link, work: "Work", watch: Callable[[], None], limit_s: float) -> None:
        link.wait(work, awake.now() + limit_s, self._channel.cancelled, watch)

    def _there(self) -> None:
        if not self._channel.is_open():
            raise LinkError("the other side is gone")

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link, self._is_stale = None, False


class LinkSender(_End):
    _beat_at = 0.0

    @property
    def still_reads(self) -> bool:
        return self._link is not None and self._link.in_flight

    def whole(self, parts: "Sequence[torch.Tensor]") -> None:
        self._move(parts, lambda _: None)

    def chunks(self, holding: HeldVersion, first: int, goes_on: Callable[[int], bool] = lambda _: True) -> bool:
        link = self._open()
        try:
            with holding.reading():
                self._send(link, holding, first, goes_on)
        except _LeftError:
            self._channel.send(ANSWER.encode(WeightsAnswer("", leave=True)))
            # Closed now, it would break before the other side has read that.
            self._is_stale = True
            return False
        return True

    def _send(self, link: Link, holding: HeldVersion, first: int, goes_on: Callable[[int], bool]) -> None:
        chunks, size = holding.chunks, piece_bytes(sum(end - start for _, start, end in holding.chunks))
        under_way: deque[tuple[Work, int]] = deque()
        sent = first

        def watch() -> None:
            self._there()
            self._beat()
            if not goes_on(first):
                raise _LeftError

        while first < len(chunks):
            watch()
            # For a part of a piece there is nothing to do.
            whole = sent if sent == len(chunks) else behind_piece(chunks, sent, len(chunks), size) - 1
            proven = holding.grown(whole, 0.0 if under_way else BEAT_S)
            while sent < len(chunks) and len(under_way) < AHEAD:
                end = behind_piece(chunks, sent, len(chunks), size)
                if end > proven:
                    break
                under_way.append((link.broadcast(holding.place(sent, end)), end))
                sent = end
            if under_way:
                work, end = under_way[0]
                self._wait(link, work, watch, self._channel.timeout_s)
                under_way.popleft()
                first = end

    def _beat(self) -> None:
        now = awake.now()
        if now >= self._beat_at + BEAT_S:
            self._beat_at = now
            self._channel.send(ANSWER.encode(WeightsAnswer("", alive=True)))


class LinkTaker(_End):
    _heard_at = 0.0
    _by = 0.0  # when the next piece must be there, whatever else comes
    _asked = 0  # chunks that are there, or under way

    def meet(self, *, chunks: bool) -> None:
        self._open(AHEAD if chunks else 1)

    def whole(self, buffers: "Sequence[torch.Tensor]", arrived: Arrived) -> None:
        self._move(buffers, arrived)

    def chunks(
        self, holding: HeldVersion, buffers: "list[torch.Tensor]", arrived: Arrived, limit_s: float | None
    ) -> bool:
        link = self._open()
        try:
            self._take(link, holding, arrived, self._channel.timeout_s if limit_s is None else limit_s)
        except _LeftError:
            return False
        finally:
            if link.in_flight:
                self._give_up(holding, buffers)
                self.close()
        return True

    def _take(self, link: Link, holding: HeldVersion, arrived: Arrived, limit_s: float) -> None:
        chunks, size = holding.chunks, piece_bytes(sum(end - start for _, start, end in holding.chunks))
        under_way: deque[tuple[Work, int]] = deque()
        self._asked = holding.proven
        self._heard_at = awake.now()
        while holding.proven < len(chunks):
            while self._asked < len(chunks) and len(under_way) < AHEAD:
                first, end = self._asked, behind_piece(chunks, self._asked, len(chunks), size)
                # Before it is: what fails may have begun.
                self._asked = end
                under_way.append((link.broadcast(holding.place(first, end)), end))
            work, end = under_way[0]
            self._by = awake.now() + limit_s
            self._watch()
            self._wait(link, work, self._watch, limit_s)
            under_way.popleft()
            self._heard_at = awake.now()
            self._prove(holding, end, arrived)

    def _prove(self, holding: HeldVersion, end: int, arrived: Arrived) -> None:
        chunks, first = holding.chunks, holding.proven
        piece = memoryview(holding.place(first, end).numpy())
        origin = chunks[first][1]
        for number in range(first, end):
            bucket, start, stop = chunks[number]
            holding.prove(piece[start - origin : stop - origin])
            if holding.ends_bucket(number):
                arrived(bucket)

    def _watch(self) -> None:
        # Sees that the other side is there (else LinkError), and hears that it sends no more (_LeftError).
        self._channel.watch()
        self._there()
        while self._channel.has_more():
            said = ANSWER.decode(self._channel.receive(ANSWER.limit, self._by))
            if said.leave:
                raise _LeftError
            self._heard_at = awake.now()
        if awake.now() > self._heard_at + self._channel.timeout_s:
            raise LinkError("the deadline passed while the other side was silent")

    def _give_up(self, holding: HeldVersion, buffers: "list[torch.Tensor]") -> None:
        # Buffers into which something may still be written are replaced, with what is proven of them.
        import torch

        begun, start, _ = holding.chunks[holding.proven]
        last = holding.chunks[self._asked - 1][0]
        for bucket in range(begun, last + 1):
            fresh = torch.empty_like(buffers[bucket])
            if bucket == begun:
                fresh[:start] = buffers[bucket][:start]
            buffers[bucket] = fresh


def carrier_of(method: Method, device: "torch.device | None" = None) -> Carrier:
    """Return what carries the bytes of a version; over NCCL on ``device``, by default this thread's GPU."""
    if method == "memory":
        return FrameCarrier()
    if method == "gloo":
        return LinkCarrier("gloo")
    if method != "nccl":
        raise WeightTransferError(f"nothing carries versions by {method}")
    if device is None:
        import torch

        device = torch.device("cuda", torch.cuda.current_device()) if uses_gpu() else torch.device("cpu")
    if device.type != "cuda":
        raise WeightTransferError(
            f"nccl carries versions from GPU to GPU, and here they would lie on {device.type}: "
            "set synchronizer.sync_method to memory"
        )
    return LinkCarrier("nccl", device)
