"""Rank 0's hold on the other ranks of a trainer: starting them, calling them, hearing of their deaths, ending them.

The other ranks are child processes (``rank``), each at the far end of a socket pair; what is said over it is
``rank_protocol``'s. They run under guards (:mod:`trinity_bus.runtime.process`): however this process ends, they do.

::

    FOLLOWING --begin(call) .. settle(step)--> FOLLOWING
       |--a rank fails or dies--> LOST: watch() raises RankError at once, and so does the call that is under way
       |                            '--no disarm() within ABORT_S-------------> ended by force, status 1
       '--end()-----------------> ENDED: a rank that was told to leave may take GRACE_S; what is left of them is killed

A thread for each rank reads its answers, and alone touches its process. The end of the socket is the end of the rank:
a death is noticed when it happens, whether or not a call is under way.

Failures: a rank dies within a collective: gloo fails on rank 0 as well, NCCL may wait; that is what ABORT_S is for. A
rank hangs: the collective fails after ``LIMIT_S``, and so does the wait for an answer. An error on rank 0 itself
leaves its call unsettled, and the others in their collectives: ``end`` kills them. Nothing is tried again here:
whoever runs the service starts it anew, and it goes on from its checkpoint.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import IO, Final, NoReturn

from trinity_bus.runtime.background import in_daemon_thread
from trinity_bus.runtime.frames import ProtocolError, head_of, read_frame
from trinity_bus.runtime.process import Child
from trinity_bus.training import rank_protocol as protocol
from trinity_bus.training.errors import RankError
from trinity_bus.training.rank_protocol import LIMIT_S, Call, Order, PendingCalls
from trinity_bus.training.token_figures import SampleFigures

log = logging.getLogger(__name__)

GRACE_S: Final = 5.0
"""How long a rank may take to end after it was told to leave."""
ABORT_S: Final = 10.0
"""How long this process may take to end after a rank was lost."""
_WORDS_S: Final = 5.0
"""How long to wait for news of a death after a collective has failed."""


class _Follower:
    """A rank other than the first, as the first knows it."""

    def __init__(self, rank: int, command: Sequence[str]) -> None:
        self.rank = rank
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.child = Child(
                [*command, str(theirs.fileno()), str(rank), str(log.getEffectiveLevel())],
                pass_fds=[theirs.fileno()],
            )
        # Of sends only: the thread that reads waits as long as it takes.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(LIMIT_S), 0))

    def send(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self.socket.sendall(frame)


class Followers:
    """The other ranks of this trainer, rank 0. All calls come from one thread, but for ``watch`` and ``end``.

    Args:
        world_size: Ranks, this one included.
        command: What runs a rank; its socket, its number and its log level are added.

    Raises:
        ProcessError: One cannot be started.
    """

    def __init__(
        self, world_size: int, *, command: Sequence[str] = (sys.executable, "-m", "trinity_bus.training.rank")
    ) -> None:
        self.world_size = world_size
        self._roll = PendingCalls(world_size)
        self._changed = threading.Condition()
        self._ending = False
        self._abort: threading.Timer | None = None
        self._followers = [_Follower(rank, command) for rank in range(1, world_size)]
        self._readers = [
            threading.Thread(target=self._read, args=(follower,), name=f"rank {follower.rank}", daemon=True)
            for follower in self._followers
        ]
        for reader in self._readers:
            reader.start()
        log.info("training on %d ranks; the others are processes %s", world_size, self.pids)

    @property
    def pids(self) -> list[int]:
        """Process ids of the other ranks, in order."""
        return [follower.child.pid for follower in self._followers]

    # ------------------------------------------------------------------------------------------------------ calls

    def begin(self, call: Call | Callable[[int], tuple[Call, Sequence[bytes]]]) -> None:
        """Has the other ranks make a call, which this one must then make, too.

        Args:
            call: Which; or, for each rank, which, and the bodies of frames that come after it.

        Raises:
            RankError: One is lost, or has not answered the call before.
        """
        each = {f.rank: call(f.rank) if callable(call) else (call, ()) for f in self._followers}
        with self._changed:
            number = self._roll.call(each[1][0])
        for follower in self._followers:
            theirs, bodies = each[follower.rank]
            frames = [protocol.ORDERS.frame(Order(number, theirs))]
            for body in bodies:
                frames += [head_of(body, protocol.SAMPLE_BYTES), body]
            try:
                follower.send(frames)
            except OSError as error:
                self._explain(error, f"rank {follower.rank} of {self.world_size} does not listen: {error}")

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Around this rank's own part of a call: an error that comes of another rank's end says so.

        Raises:
            RankError: In place of what a collective says when a rank is lost.
        """
        try:
            yield
        except RuntimeError as error:  # what collectives raise
            with self._changed:
                self._changed.wait_for(lambda: self._roll.lost, _WORDS_S)
                if self._roll.lost is not None:
                    raise RankError(self._roll.lost) from error
            raise

    def settle(self, step: int | None) -> None:
        """Wait until all other ranks have made the call, too.

        Args:
            step: At which this rank's engine is, and theirs must be. Unset: there is none any more.

        Raises:
            RankError: One is lost, late, or somewhere else.
        """
        roll = self._roll
        with self._changed:
            if not self._changed.wait_for(lambda: roll.lost is not None or roll.settled, LIMIT_S):
                raise RankError(roll.late(LIMIT_S))
            if roll.lost is not None:
                raise RankError(roll.lost)
            if step is not None:
                roll.check(step)

    def take_figures(self) -> list[SampleFigures]:
        """Return what came with the answers to the last call, once."""
        with self._changed:
            return self._roll.take_figures()

    @property
    def ready(self) -> bool:
        """Whether the next call can be made: all live, and have made the one before."""
        with self._changed:
            return self._roll.lost is None and self._roll.settled and not self._ending

    # ------------------------------------------------------------------------------------------------ deaths, end

    async def watch(self) -> None:
        """Return when the ranks are ended as they should be.

        Raises:
            RankError: One was lost. This process has ``ABORT_S`` from then on to end in order.
        """
        await in_daemon_thread(self._until_lost, name="watch ranks")

    def end(self) -> None:
        """Wait for ranks that were told to leave, and kill the others. Safe to call twice; blocks for seconds."""
        with self._changed:
            self._ending = True
            leaving = self._roll.leaving and self._roll.settled
            self._changed.notify_all()
        for follower, reader in zip(self._followers, self._readers, strict=True):
            if leaving:
                reader.join(GRACE_S)
            # The reader takes this for the rank's end, and sees to its process.
            with contextlib.suppress(OSError):
                follower.socket.shutdown(socket.SHUT_RDWR)
            reader.join()

    def disarm(self) -> None:
        """Nothing of this process waits for a collective any more: it need not be ended by force."""
        if self._abort is not None:
            self._abort.cancel()

    def _until_lost(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._roll.lost or self._ending)
            if self._ending or self._roll.lost is None:
                return
            reason = self._roll.lost
            self._abort = threading.Timer(ABORT_S, _end_by_force, (reason,))
            self._abort.daemon = True
            self._abort.start()
        log.error("%s: the trainer ends, and goes on from its checkpoint when it is started again", reason)
        raise RankError(reason)

    def _explain(self, error: OSError, otherwise: str) -> NoReturn:
        with self._changed:
            self._changed.wait_for(lambda: self._roll.lost, _WORDS_S)
            raise RankError(self._roll.lost or otherwise) from error

    def _read(self, follower: _Follower) -> None:
        """Note that what a rank says, until its end; then its end."""
        with follower.socket.makefile("rb") as file:
            self._hear(follower.rank, file)
        with self._changed:
            grace_s = 0.0 if self._ending and not self._roll.leaving else GRACE_S
        status = follower.child.wait(grace_s)
        if status is None:
            status = follower.child.kill()
        with self._changed:
            if not self._ending:
                self._roll.ended(follower.rank, follower.child.pid, status)
            self._changed.notify_all()
        follower.socket.close()

    def _hear(self, rank: int, file: IO[bytes]) -> None:
        while True:
            try:
                body = read_frame(file, protocol.ANSWERS.limit)
                answer = None if body is None else protocol.ANSWERS.decode(body)
            except ProtocolError as error:
                with self._changed:
                    self._roll.spoke_nonsense(rank, str(error))
                    self._changed.notify_all()
                return
            if answer is None:
                return
            with self._changed:
                self._roll.answered(rank, answer)
                self._changed.notify_all()


@contextlib.asynccontextmanager
async def followers_of(world_size: int) -> AsyncIterator[Followers | None]:
    """Provide the other ranks, watched: within, the death of one cancels the block. None where there is one rank.

    Raises:
        ExceptionGroup: Of RankError, where one was lost.
    """
    if world_size == 1:
        yield None
        return
    followers = Followers(world_size)
    try:
        async with asyncio.TaskGroup() as watching:
            watch = watching.create_task(followers.watch(), name="watch ranks")
            yield followers
            watch.cancel()
    finally:
        await asyncio.to_thread(followers.end)
        followers.disarm()


def _end_by_force(reason: str) -> None:
    sys.stderr.write(f"{reason}: ended by force, because a collective still waits for it\n")
    sys.stderr.flush()
    os._exit(1)
