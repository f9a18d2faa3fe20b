"""The trainer's server and its members, each in a process and, where there are any, a namespace of its own."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Literal

import torch
import torch.distributed  # takes seconds, as the first link; engines and trainers have it

from benchmarks._children import Side
from benchmarks._fan_out.network import enter
from benchmarks._records import announce, source
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.pull.transport import PullTransport
from trinity_bus.weights.receiver import TransferProgress, WeightReceiver
from trinity_bus.weights.vllm.plugin import die_with_parent

LIMIT_S = 60.0
_BUCKETS = 32

type FanOutMethod = Literal["memory", "gloo"]
type Where = tuple[str | None, str]
"""Namespace, or None for that of this machine; and address."""


def _die_after(buckets: int) -> None:
    """Let this process kill itself when so many buckets of a version have come."""
    fill = PullTransport.fill

    def dying(self: PullTransport, buffers: list[torch.Tensor], arrived: Callable[[int], None]) -> None:
        def look(index: int) -> None:
            arrived(index)
            if index + 1 == buckets:
                os.kill(os.getpid(), signal.SIGKILL)

        fill(self, buffers, look)

    PullTransport.fill = dying  # type: ignore[method-assign]


def member(pipe: Connection, where: Where) -> None:
    die_with_parent()
    torch.set_num_threads(1)
    if where[0] is not None:
        enter(where[0])
    receiver = WeightReceiver()
    pipe.send("here")
    while (command := pipe.recv()) is not None:
        wanted, what = command
        if what == "let in":
            receiver.let_in(wanted)
            continue
        if what == "take and die":
            _die_after(_BUCKETS // 2)

        def ended(progress: TransferProgress) -> None:
            pipe.send((progress.state, progress.error, progress.verified_at))

        receiver.start(wanted, ended)
        # What has come is passed on until the next version: nobody is done before all are.
        assert pipe.recv() == "all have it"
        receiver.take()
    receiver.close()


def trainer(pipe: Connection, where: Where, nbytes: int, fan_out: bool, method: FanOutMethod) -> None:
    die_with_parent()
    if where[0] is not None:
        enter(where[0])
    size = nbytes // _BUCKETS
    server = WeightServer(where[1], bucket_bytes=size, timeout_s=LIMIT_S, fan_out=fan_out, method=method)
    tensors = {f"{i}": torch.randint(0, 255, (size,), dtype=torch.uint8) for i in range(_BUCKETS)}
    pipe.send(server.address)
    while (told := pipe.recv()) is not None:
        if isinstance(told, int):
            tensors["0"][:8] = torch.tensor(list(told.to_bytes(8)), dtype=torch.uint8)
            pipe.send(server.stage(told, tensors.items()))
        else:
            server.admit(told)
            pipe.send("admitted")
    server.close()


class Receivers:
    def __init__(self, trainer: Side, members: list[Side], method: FanOutMethod) -> None:
        self._method: FanOutMethod = method
        self._trainer = trainer
        self._members = dict(enumerate(members))
        self._address = trainer.hear()
        self._epoch = self._version = 0
        self._checksum = ""
        self._have_it: set[int] = set()
        for side in members:
            side.hear()

    def round(
        self, *, victim: int | None = None, slow: int | None = None, members: Collection[int] | None = None
    ) -> float:
        """Bring a new version to members. Return the seconds until the last one has it, proven.

        Args:
            victim: One that kills itself when it has half of it, and is not waited for.
            slow: One that is not waited for; there is no further round.
            members: Which; by default, all that there are.
        """
        self._version += 1
        self._trainer.pipe.send(self._version)
        self._checksum = self._trainer.hear()
        self._have_it = set()
        return self._bring(sorted(self._members if members is None else members), victim, slow)

    def join_late(self, members: Collection[int], amid: Callable[[], None] = lambda: None) -> float:
        """Bring the last round's version to others: seconds until the last one of them has it, proven."""
        return self._bring(sorted(members), None, None, amid)

    def kill(self, number: int) -> None:
        self._have_it.discard(number)
        self._members.pop(number).process.kill()

    def _bring(
        self, members: list[int], victim: int | None, slow: int | None, amid: Callable[[], None] = lambda: None
    ) -> float:
        self._epoch += 1
        names = [f"explorer-{number}" for number in members]
        announced = announce(self._version, self._checksum, self._address, self._method, *names, epoch=self._epoch)
        self._trainer.pipe.send(announced)
        self._trainer.hear()
        # Who has it reads announcements, too.
        for number in self._have_it:
            self._members[number].pipe.send((source(announced, "nobody", LIMIT_S), "let in"))
        began = time.monotonic()
        for number in members:
            what = "take and die" if number == victim else "take"
            self._members[number].pipe.send((source(announced, f"explorer-{number}", LIMIT_S), what))
        amid()
        waited_for = [number for number in members if number not in (victim, slow)]
        told = [self._members[number].hear() for number in waited_for]
        for number in waited_for:
            self._members[number].pipe.send("all have it")
        self._have_it.update(waited_for)
        if victim is not None:
            self._members.pop(victim).process.join(LIMIT_S)
        if failed := [error for state, error, _ in told if state != "ready"]:
            raise RuntimeError(f"{len(failed)} members do not have it: {failed[0]}")
        return float(max(at for _, _, at in told) - began)


@contextmanager
def fleet(
    places: Sequence[Where], nbytes: int, *, fan_out: bool = True, method: FanOutMethod = "memory"
) -> Iterator[Receivers]:
    multiprocessing.get_context("forkserver").set_forkserver_preload(["benchmarks._fan_out.members"])
    sides: list[Side] = []
    try:
        for number, where in enumerate(places):
            more = () if number else (nbytes, fan_out, method)
            sides.append(Side(member if number else trainer, where, *more, start="forkserver"))
        yield Receivers(sides[0], sides[1:], method)
    finally:
        for side in sides:
            side.end()
