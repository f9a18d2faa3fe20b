"""Announcements and threads for tests of weight transfers."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from schemas import ModelVersion
from tests.support.fakes.announcements import announced
from tests.support.mesh.waiting import wait_until
from trinity_bus.weights.receiver import TransferProgress, WeightReceiver
from trinity_bus.weights.transport import Source, source_of
from workers.trainer.published_tensors import Publisher

SECRET = "5e" * 32


def announcement(
    publisher: Publisher, version: int, checksum: str, *explorers: str, checkpoint: Path | None = None, **changes: Any
) -> ModelVersion:
    """A version for these explorers, as the coordinator would announce it; the trainer has read it."""
    host, port = publisher.address
    staged: dict[str, Any] = {
        "method": publisher.method,
        "trainer_incarnation": "trainer-life",
        "master_address": host,
        "master_port": port,
        "checksum": checksum,
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "secret": SECRET,
    }
    made = announced(version, *explorers, **staged | changes)
    publisher.admit(made)
    return made


def settled(receiver: WeightReceiver, limit_s: float = 20.0) -> TransferProgress:
    """The receiver's progress as soon as it is no longer receiving."""
    wait_until(lambda: receiver.progress.state != "receiving", "end of the transfer", limit_s)
    return receiver.progress


def pull(
    publisher: Publisher,
    receiver: WeightReceiver,
    version: int,
    checksum: str,
    timeout_s: float = 5,
    *,
    epoch: int = 1,
) -> TransferProgress:
    """Announce a version to a member ``a``, and have it received."""
    receiver.start(source_of(announcement(publisher, version, checksum, "a", epoch=epoch), "a", timeout_s))
    return settled(receiver)


def assert_takes(receiver: WeightReceiver, wanted: dict[str, torch.Tensor]) -> None:
    got = dict(receiver.take())
    assert list(got) == list(wanted)
    assert all(torch.equal(got[name], wanted[name]) and got[name].dtype == wanted[name].dtype for name in wanted)


def peer(*arguments: object, module: str = "pulls") -> "subprocess.Popen[bytes]":
    """One end of a transfer in a process of its own, to be killed: see ``pulls`` and ``main``."""
    command = [sys.executable, "-m", f"tests.support.faults.{module}", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def line_of(process: "subprocess.Popen[bytes]") -> bytes:
    """What a process prints next."""
    assert process.stdout is not None
    return process.stdout.readline()


def main() -> None:
    """A member in a process of its own, to be killed: ``python -m tests.support.faults.transfers HOST PORT PREFIX
    ...``.

    Prints ``here`` when it can take versions, takes version 0, prints ``taken``, begins to take version 1 of many
    buckets, and prints ``first`` after the first.
    """
    host, port, prefix, first, second = sys.argv[1:]
    from trinity_bus.weights.link.link import Link

    receiver = WeightReceiver()
    import torch.distributed  # noqa: F401 - takes seconds, and the trainer's time is limited

    sys.stdout.write("here\n")
    sys.stdout.flush()
    at = Source(host=host, port=int(port), prefix=prefix, version=0, checksum=first, secret=SECRET, timeout_s=20)
    receiver.start(at)
    assert settled(receiver).state == "ready", receiver.progress
    list(receiver.take())
    sys.stdout.write("taken\n")
    sys.stdout.flush()
    original = Link.wait

    def wait_and_stay(self: Link, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        sys.stdout.write("first\n")
        sys.stdout.flush()
        sys.stdin.read()

    Link.wait = wait_and_stay  # type: ignore[method-assign, assignment]
    receiver.start(replace(at, version=1, checksum=second))
    settled(receiver, 60)


if __name__ == "__main__":
    main()
