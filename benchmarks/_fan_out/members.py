"""The trainer's server and its members, each in a process and, where there are any, a namespace of its own."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch

from benchmarks._children import Side
from benchmarks._fan_out.network import enter
from benchmarks._records import announce
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.pull.transport import PullTransport
from trinity_bus.weights.receiver import TransferProgress, WeightReceiver
from trinity_bus.weights.transport import source_of
from trinity_bus.weights.vllm.plugin import die_with_parent

LIMIT_S = 60.0
_BUCKETS = 32

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
        if what == "take and die":
            _die_after(_BUCKETS // 2)

        def ended(progress: TransferProgress) -> None:
            pipe.send((progress.state, progress.error, progress.verified_at))

        receiver.start(wanted, ended)
        # What has come is passed on until the next version: nobody is done before all are.
        assert pipe.recv() == "all have it"
        receiver.take()
    receiver.close()


def trainer(pipe: Connection, where: Where, nbytes: int, fan_out: bool) -> None:
    die_with_parent()
    if where[0] is not None:
        enter(where[0])
    size = nbytes // _BUCKETS
    server = WeightServer(where[1], bucket_bytes=size, timeout_s=LIMIT_S, fan_out=fan_out)
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
    def __init__(self, trainer: Side, members: list[Side]) -> None:
        self._trainer = trainer
        self._members = dict(enumerate(members))
        self._address = trainer.hear()
        self._version = 0
        for side in members:
            side.hear()

    def round(self, *, victim: int | None = None) -> float:
        """Bring a new version to all members. Return the seconds until the last one has it, proven.

        ``victim`` kills itself when it has half of it, and is not waited for.
        """
        self._version += 1
        self._trainer.pipe.send(self._version)
        checksum = self._trainer.hear()
        names = [f"explorer-{number}" for number in self._members]
        announced = announce(self._version, checksum, self._address, "memory", *names, epoch=self._version)
        self._trainer.pipe.send(announced)
        self._trainer.hear()
        began = time.monotonic()
        for number, side in self._members.items():
            what = "take and die" if number == victim else "take"
            side.pipe.send((source_of(announced, f"explorer-{number}", LIMIT_S), what))
        waited_for = [side for number, side in self._members.items() if number != victim]
        told = [side.hear() for side in waited_for]
        for side in waited_for:
            side.pipe.send("all have it")
        if victim is not None:
            self._members.pop(victim).process.join(LIMIT_S)
        if failed := [error for state, error, _ in told if state != "ready"]:
            raise RuntimeError(f"{len(failed)} members do not have it: {failed[0]}")
        return float(max(at for _, _, at in told) - began)


@contextmanager
def fleet(places: Sequence[Where], nbytes: int, *, fan_out: bool = True) -> Iterator[Receivers]:
    multiprocessing.get_context("forkserver").set_forkserver_preload(["benchmarks._fan_out.members"])
    sides: list[Side] = []
    try:
        for number, where in enumerate(places):
            more = () if number else (nbytes, fan_out)
            sides.append(Side(member if number else trainer, where, *more, start="forkserver"))
        yield Receivers(sides[0], sides[1:])
    finally:
        for side in sides:
            side.end()
