"""Ranks that a launcher such as ``torchrun`` has started, on this machine and on others: how they come to rank 0.

All of them run ``trinity-bus run trainer``. Rank 0 is the service; every other one connects to it and makes its calls
(``trinity_bus.training.ranks.rank``)::

    rank 0                                                      rank n
      listens at trainer.ranks_host
      the launcher's store: where ------------------------------> reads it
           <--------------------------------------------------- connects, again and again until it is let in;
                                                                both prove that they know trainer.ranks_key
      PARKED --start()--> FOLLOWS --Leave--> PARKED              makes calls
        |--close() in order: Leave-----------------------------> ended: 0
        '--close() after an error, and every other end---------> ended: 1
      FOLLOWS --this process ends in whatever way--------------> ended: 1, by force after ABORT_S within a collective
      FOLLOWS --rank n ends, or is silent for SILENCE_S--------> lost: this process ends

A connection is a member's of ``weights.listener``: a stranger at the port is refused, and each message has a code. The
launcher's store, and what gloo and NCCL say, is not protected by this: see docs/security.md.

Failures: of many ranks that come at once rank 0 cuts some, as strangers (``listener.MAX_STRANGERS``): they come again
after a random time. A rank does not come within ``LIMIT_S``: RankError, which names it. A machine is gone without a
word: the kernel notices after ``SILENCE_S``, whichever side waits for the other. The launcher ends what else it has
started on the machine of a rank that failed; rank 0 says which it was, and ends; whoever runs the launchers starts all
of them anew.
"""

import asyncio
import contextlib
import os
import random
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Final

from trinity_bus import awake
from trinity_bus.config import Settings
from trinity_bus.runtime.frames import ProtocolError
from trinity_bus.runtime.service import in_daemon_thread
from trinity_bus.training.errors import RankError
from trinity_bus.training.ranks.followers import ABORT_S, ChildRanks, Follower, RankSource, end_by_force
from trinity_bus.training.ranks.launch import Launch, launch_of
from trinity_bus.training.ranks.rank_protocol import CALLS, LIMIT_S, SAMPLE_BYTES, Leave, RankLine
from trinity_bus.weights.channel import Channel, meet
from trinity_bus.weights.errors import LinkError, WireError
from trinity_bus.weights.listener import PeerListener
from trinity_bus.weights.transport import Source
from workers.preconditions import ranks_key

if TYPE_CHECKING:
    from torch.distributed import Store

log = getLogger(__name__)

# How long a machine may be unreachable before its ranks are taken for lost
SILENCE_S: Final = 30
# How long a rank tries to come to rank 0
_COMING_S: Final = LIMIT_S
# Most between two tries
_PAUSE_S: Final = 4.0
# In the launcher's store: host and port of rank 0
_WHERE: Final = "trinity-bus/orders"
_NAME: Final = re.compile(r"rank-([1-9]\d{0,6})")


class _PeerLine(RankLine):
    def __init__(self, channel: Channel) -> None:
        channel.notice_silence(SILENCE_S)
        self.channel = channel
        self._sending = channel.half_for_sending()
        self.why_ended = "the connection was ended here"

    def send(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            if len(body) > SAMPLE_BYTES:
                raise ProtocolError(f"a message of {len(body)} bytes, at most {SAMPLE_BYTES} are allowed")
            self._sending.send(body)

    def receive(self, limit: int) -> bytes | None:
        self.channel.wait()
        try:
            return self.channel.receive(limit)
        except WireError as error:
            raise ProtocolError(str(error)) from error
        except LinkError as error:
            self.why_ended = str(error)
            return None

    def end(self) -> None:
        self._sending.close()
        self.channel.close()

    def close(self) -> None:
        self.end()


class _Launched(Follower):
    def __init__(self, rank: int, line: _PeerLine, ranks: "LaunchedRanks") -> None:
        super().__init__(rank, line, f"at {line.channel.ends[1]}")
        self._peer, self._ranks = line, ranks

    def let_go(self) -> None:
        self._ranks.park(self.rank, self._peer)

    def see_to_end(self, grace_s: float) -> str:
        self._ranks.release(self.rank, self._peer)
        return f"is gone: {self._peer.why_ended}"


class LaunchedRanks:
    """The other ranks, as rank 0 knows them. All methods may be called from any thread."""

    def __init__(self, launch: Launch, host: str, ports: Sequence[int], key: str, *, limit_s: float = LIMIT_S) -> None:
        self.host = host
        self._launch = launch
        self._key = key.encode()
        self._limit_s = limit_s
        self._changed = threading.Condition()
        self._closed = False
        self._parked: dict[int, _PeerLine] = {}
        self._store: Store | None = None
        try:
            self._listener = PeerListener(
                host, ports, timeout_s=LIMIT_S, attend=self._attend, find_secret=self._find_key, what="ranks"
            )
        except LinkError as error:
            raise RankError(
                f"{error}; trainer.ranks_host must be an address of the machine that has rank 0: the first one where "
                "launchers are given --node-rank, any with --rdzv-backend c10d"
            ) from error
        self.address = self._listener.address

    def announce(self) -> None:
        """Tell the other ranks where this one listens, in the launcher's store. Takes seconds: imports torch."""
        host, port = self.address
        # Where the launcher keeps no store this process does, for as long as it is held.
        self._store = _launchers_store()
        self._store.set(_WHERE, f"{host}:{port}")
        log.info("the other ranks of %d find this one at %s:%d", self._launch.world_size, host, port)

    def wait(self, world_size: int) -> None:
        if world_size != self._launch.world_size:
            raise RankError(
                f"{self._launch.world_size} ranks were launched, and {world_size} are to train: start the launchers "
                "for as many as trainer.tensor_parallel, .pipeline_parallel, .context_parallel and .data_parallel make"
            )
        with self._changed:
            come = partial(self._changed.wait_for, lambda: self._closed or not self._missing())
            awake.wait_in_thread(come, self._limit_s)
            if missing := self._missing():
                raise RankError(
                    f"rank {', '.join(map(str, missing))} of {world_size} did not connect to "
                    f"{self.address[0]}:{self.address[1]} within {self._limit_s:g} s: is its machine's launcher "
                    "running, does it reach trainer.ranks_host, and has it the same trainer.ranks_key?"
                )

    def start(self, world_size: int) -> list[_Launched]:
        with self._changed:
            if missing := self._missing():
                raise RankError(f"rank {missing[0]} of {world_size} is gone before training has begun")
            parked, self._parked = self._parked, {}
        return [_Launched(rank, parked[rank], self) for rank in range(1, world_size)]

    def park(self, rank: int, line: _PeerLine) -> bool:
        """Keep a rank for the training to come; False where there is none."""
        with self._changed:
            before = line if self._closed else self._parked.get(rank)
            if not self._closed:
                self._parked[rank] = line
            self._changed.notify_all()
        if before is not None:
            self.release(rank, before)
        return before is not line

    def release(self, rank: int, line: _PeerLine) -> None:
        line.close()
        self._listener.close_channel(line.channel, _name(rank))

    def close(self, *, in_order: bool = False) -> None:
        """Cut all connections; ``in_order`` ranks that wait for a training end as they should, else as failed."""
        with self._changed:
            self._closed = True
            parked, self._parked = self._parked, {}
            self._changed.notify_all()
        for rank, line in parked.items():
            # One that is gone has ended already.
            with contextlib.suppress(LinkError):
                line.send([CALLS.encode(Leave())] if in_order else [])
            self.release(rank, line)
        self._listener.close()

    def _missing(self) -> list[int]:
        for rank, line in list(self._parked.items()):
            if not line.channel.is_open():
                self.release(rank, self._parked.pop(rank))
        return [rank for rank in range(1, self._launch.world_size) if rank not in self._parked]

    def _find_key(self, _who: str, is_right: Callable[[bytes], bool], _deadline: float) -> bytes:
        if not is_right(self._key):
            raise LinkError("it does not know trainer.ranks_key, which must be the same on all machines")
        return self._key

    def _attend(self, channel: Channel, who: str) -> bool:
        named = _NAME.fullmatch(who)
        if named is None or int(named[1]) >= self._launch.world_size:
            raise LinkError(f"{who} is no rank of {self._launch.world_size}")
        return self.park(int(named[1]), _PeerLine(channel))


@contextlib.asynccontextmanager
async def ranks_of(settings: Settings) -> AsyncIterator[RankSource]:
    launch = launch_of(os.environ)
    if launch is None:
        yield ChildRanks()
        return
    trainer = settings.trainer
    key = ranks_key(settings)
    made: list[LaunchedRanks] = []

    def listen() -> None:
        # Looks up a name, which may take long.
        made.append(LaunchedRanks(launch, trainer.ranks_host, trainer.ranks_ports, key))
        made[0].announce()

    in_order = False
    try:
        await in_daemon_thread(listen, name="announce")
        yield made[0]
        in_order = True
    except asyncio.CancelledError:
        in_order = True
        raise
    finally:
        for ranks in made:
            ranks.close(in_order=in_order)


def follow(settings: Settings, launch: Launch, level: int) -> int:
    """Be a rank other than the first, until rank 0 wants it no more; return the exit status.

    ``settings`` are this machine's: rank 0 sends those of the training.
    """
    key = ranks_key(settings)
    host, port = _where_rank_0_is()
    try:
        line = _come(host, port, launch.rank, key, _COMING_S)
    except LinkError as error:
        raise RankError(
            f"{error}: trainer.ranks_key must be the same on all machines, and trainer.ranks_host an address of rank "
            "0's that all of them reach"
        ) from error
    # Only now: it takes long, and imports all that trains.
    from trinity_bus.training.ranks import rank as program

    program.prepare(launch.rank, level)
    over = threading.Event()
    threading.Thread(target=_end_with, args=(line, over), name="watch rank 0", daemon=True).start()
    try:
        outcome = program.follow(line, launch.rank, launch.local_rank)
    finally:
        over.set()
        line.close()
    match outcome:
        case program.Outcome.DISMISSED:
            log.info("rank 0 has ended")
        case program.Outcome.ORPHANED:
            log.error("rank 0 is gone: %s", line.why_ended)
        case program.Outcome.FAILED:
            log.error("this rank failed; the log of rank 0 says in what")
    return int(outcome is not program.Outcome.DISMISSED)


def _come(host: str, port: int, rank: int, key: str, limit_s: float) -> _PeerLine:
    deadline = awake.now() + limit_s
    while True:
        try:
            return _connect(host, port, rank, key)
        except LinkError as error:
            pause_s = random.uniform(0, _PAUSE_S)  # noqa: S311 - so that not all come together again
            if awake.now() + pause_s > deadline:
                raise
            log.warning("%s: tried again; do trainer.ranks_key and trainer.ranks_host fit rank 0's?", error)
        time.sleep(pause_s)


def _connect(host: str, port: int, rank: int, key: str) -> _PeerLine:
    source = Source(
        host=host,
        port=port,
        prefix=_name(rank),
        version=0,
        checksum="",
        secret=key.encode().hex(),
        timeout_s=LIMIT_S,
    )
    return _PeerLine(meet(source, threading.Event()))


def _end_with(line: _PeerLine, over: threading.Event) -> None:
    line.channel.wait_for_end()
    if not awake.wait_in_thread(over.wait, ABORT_S):
        end_by_force("rank 0 is gone")


def _where_rank_0_is() -> tuple[str, int]:
    store = _launchers_store()
    try:
        host, _, port = store.get(_WHERE).decode().rpartition(":")
    except RuntimeError as error:
        raise RankError(f"rank 0 has not said where it listens: look at its log ({_line_of(error)})") from error
    return host, int(port)


def _launchers_store() -> "Store":
    from torch.distributed import rendezvous

    try:
        store: Store = next(iter(rendezvous("env://", timeout=timedelta(seconds=LIMIT_S))))[0]
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise RankError(f"the launcher's store at {where} does not answer: {_line_of(error)}") from error
    return store


def _line_of(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _name(rank: int) -> str:
    return f"rank-{rank}"
