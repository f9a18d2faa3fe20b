"""Rank 0's hold on the other ranks of a trainer: calling them, hearing of their ends, ending them.

Where they come from is a :class:`RankSource`: child processes of this one (:class:`ChildRanks`), or processes that a
launcher has started on this and other machines. Each is at the far end of a line (``RankLine``)::

    FOLLOWING --begin(call) .. settle(step)--> FOLLOWING
       |--a rank fails or dies--> LOST: watch() raises RankError at once, and so does the call that is under way
       |                            '--no disarm() within ABORT_S-------------> ended by force, status 1
       '--end()-----------------> ENDED: a rank that has left is let go; what is left of the others is killed

A thread for each rank reads its answers until it has left, and alone sees to its end. The end of the line is the end of
the rank: a death is noticed when it happens, whether or not a call is under way.

Failures: a rank dies within a collective: gloo fails on rank 0 as well, NCCL may wait; that is what ABORT_S is for. A
rank hangs: the collective fails after ``LIMIT_S``, and so does the wait for an answer. An error on rank 0 itself
leaves its call unsettled, and the others in their collectives: ``end`` kills children, and cuts the lines of others,
who end then. Children run under guards (:mod:`trinity_bus.runtime.process`): however this process ends, they do.
Nothing is tried again here: whoever runs the service starts it anew, and it goes on from its checkpoint.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Final, NoReturn, Protocol

from trinity_bus import awake
from trinity_bus.runtime.frames import ProtocolError
from trinity_bus.runtime.ports import LOOPBACK
from trinity_bus.runtime.process import Child, how_ended
from trinity_bus.runtime.service import in_daemon_thread
from trinity_bus.training.errors import RankError
from trinity_bus.training.ranks import rank_protocol as protocol
from trinity_bus.training.ranks.rank_protocol import LIMIT_S, Call, PairLine, PendingCalls, RankLine
from trinity_bus.training.steps.token_figures import SampleFigures

log = logging.getLogger(__name__)

# How long a rank may take to end after it was told to leave
GRACE_S: Final = 5.0
# How long this process may take to end after a rank was lost
ABORT_S: Final = 10.0
# How long to wait for news of a death after a collective has failed
_WORDS_S: Final = 5.0


class Follower(ABC):
    """``where`` it is, for people, such as ``"process 42"``."""

    def __init__(self, rank: int, line: RankLine, where: str) -> None:
        self.rank = rank
        self.line = line
        self.where = where

    def let_go(self) -> None:
        """Part from a rank that has left, by its own answer."""
        self.line.close()
        self.see_to_end(GRACE_S)

    @abstractmethod
    def see_to_end(self, grace_s: float) -> str:
        """Have it ended, now that its line has; return how it did, such as ``"was ended by SIGKILL"``."""


class RankSource(Protocol):
    # Where stores listen in which all ranks can meet
    host: str

    def wait(self, world_size: int) -> None:
        """Wait until so many ranks can be had, this one included. May be called from any thread."""
        ...

    def start(self, world_size: int) -> Sequence[Follower]: ...


class _Child(Follower):
    def __init__(self, rank: int, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.child = Child(
                [*command, str(theirs.fileno()), str(rank), str(log.getEffectiveLevel())],
                pass_fds=[theirs.fileno()],
            )
        super().__init__(rank, PairLine(ours), f"process {self.child.pid}")

    def see_to_end(self, grace_s: float) -> str:
        status = self.child.wait(grace_s)
        return how_ended(self.child.kill() if status is None else status)


class ChildRanks:
    """``command`` runs a rank; its socket, its number and its log level are added."""

    host = LOOPBACK

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "trinity_bus.training.ranks.rank")) -> None:
        self._command = command
        # In order
        self.pids: list[int] = []

    def wait(self, world_size: int) -> None: ...

    def start(self, world_size: int) -> list[_Child]:
        children = [_Child(rank, self._command) for rank in range(1, world_size)]
        self.pids = [one.child.pid for one in children]
        return children


class Followers:
    """The other ranks of this trainer, rank 0. All calls come from one thread, but for ``watch`` and ``end``."""

    def __init__(self, world_size: int, source: RankSource) -> None:
        self.world_size = world_size
        self.host = source.host
        self._roll = PendingCalls(world_size)
        self._changed = threading.Condition()
        self._ending = False
        self._abort: awake.Alarm | None = None
        self._followers = source.start(world_size)
        self._readers = [
            threading.Thread(target=self._read, args=(follower,), name=f"rank {follower.rank}", daemon=True)
            for follower in self._followers
        ]
        for reader in self._readers:
            reader.start()
        where = ", ".join(follower.where for follower in self._followers)
        log.info("training on %d ranks; the others: %s", world_size, where)

    # ------------------------------------------------------------------------------------------------------ calls

    def begin(self, call: Call | Callable[[int], tuple[Call, Sequence[bytes]]]) -> None:
        """Have the other ranks make a call, which this one must then make, too; RankError where that cannot be.

        ``call`` may say, for each rank, which call, and the messages that come after it.
        """
        each = {f.rank: call(f.rank) if callable(call) else (call, ()) for f in self._followers}
        with self._changed:
            self._roll.call(each[1][0])
        for follower in self._followers:
            theirs, bodies = each[follower.rank]
            try:
                follower.line.send([protocol.CALLS.encode(theirs), *bodies])
            except OSError as error:
                otherwise = f"rank {follower.rank} of {self.world_size} does not listen: {error}"
                raise RankError(self._loss() or otherwise) from error

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Around this rank's own part of a call: RankError in place of what a collective says when a rank is lost."""
        try:
            yield
        except RuntimeError as error:  # what collectives raise
            if (lost := self._loss()) is not None:
                raise RankError(lost) from error
            raise

    def settle(self, step: int | None) -> None:
        """Wait until all other ranks have made the call, too, and are at this step; None: they have no engine now."""
        roll = self._roll
        with self._changed:
            if not self._wait(lambda: roll.lost is not None or not roll.waiting, LIMIT_S):
                raise RankError(roll.late(LIMIT_S))
            if roll.lost is not None:
                raise RankError(roll.lost)
            if step is not None:
                roll.check(step)

    def take_figures(self) -> list[SampleFigures]:
        with self._changed:
            return self._roll.take_figures()

    @property
    def ready(self) -> bool:
        """Whether the next call can be made: all live, and have made the one before."""
        with self._changed:
            return self._roll.lost is None and not self._roll.waiting and not self._ending

    # ------------------------------------------------------------------------------------------------ deaths, end

    async def watch(self) -> None:
        """Return when the ranks are ended as they should be; RankError when one is lost: ``ABORT_S`` are left then."""
        await in_daemon_thread(self._until_lost, name="watch ranks")

    def end(self) -> None:
        """Wait for ranks that have left, and end the others. Safe to call twice; blocks for seconds."""
        with self._changed:
            self._ending = True
            leaving = self._roll.leaving and not self._roll.waiting and self._roll.lost is None
            self._changed.notify_all()
        for follower, reader in zip(self._followers, self._readers, strict=True):
            if not leaving:
                # The reader takes this for the rank's end, and sees to that.
                follower.line.end()
            reader.join()

    def disarm(self) -> None:
        """Nothing of this process waits for a collective any more: it need not be ended by force."""
        if self._abort is not None:
            self._abort.cancel()

    def _wait(self, has_come: Callable[[], object], limit_s: float) -> bool:
        return awake.wait_in_thread(partial(self._changed.wait_for, has_come), limit_s)

    def _until_lost(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._roll.lost or self._ending)
            if self._ending or self._roll.lost is None:
                return
            reason = self._roll.lost
            self._abort = awake.Alarm(ABORT_S, partial(end_by_force, reason))
        log.error("%s: the trainer ends, and goes on from its checkpoint when it is started again", reason)
        raise RankError(reason)

    def _loss(self) -> str | None:
        # Which rank is lost, where that is why something else has failed: news of it may still be under way.
        with self._changed:
            self._wait(lambda: self._roll.lost, _WORDS_S)
            return self._roll.lost

    def _read(self, follower: Follower) -> None:
        if self._hear(follower):
            follower.let_go()
            return
        with self._changed:
            grace_s = 0.0 if self._ending and not self._roll.leaving else GRACE_S
        follower.line.close()
        how = follower.see_to_end(grace_s)
        with self._changed:
            if not self._ending:
                self._roll.ended(follower.rank, f"({follower.where}) {how}")
            self._changed.notify_all()

    def _hear(self, follower: Follower) -> bool:
        # Whether it has left, in the end
        while True:
            try:
                body = follower.line.receive(protocol.ANSWERS.limit)
                answer = None if body is None else protocol.ANSWERS.decode(body)
            except ProtocolError as error:
                with self._changed:
                    self._roll.spoke_nonsense(follower.rank, str(error))
                    self._changed.notify_all()
                return False
            if answer is None:
                return False
            with self._changed:
                self._roll.answered(follower.rank, answer)
                self._changed.notify_all()
                if self._roll.leaving and self._roll.lost is None:
                    return True


@contextlib.asynccontextmanager
async def followers_of(world_size: int, source: RankSource) -> AsyncIterator[Followers | None]:
    """Provide the other ranks, watched: the death of one cancels the block. None where there is one rank."""
    if world_size == 1:
        yield None
        return
    await in_daemon_thread(lambda: source.wait(world_size), name="wait for ranks")
    followers = Followers(world_size, source)
    try:
        async with asyncio.TaskGroup() as watching:
            watch = watching.create_task(followers.watch(), name="watch ranks")
            yield followers
            watch.cancel()
    finally:
        await asyncio.to_thread(followers.end)
        followers.disarm()


def end_by_force(reason: str) -> NoReturn:
    sys.stderr.write(f"{reason}: ended by force, because a collective still waits for it\n")
    sys.stderr.flush()
    os._exit(1)
