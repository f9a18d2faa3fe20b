"""Announcements and threads for tests of weight transfers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from schemas import ModelVersion
from tests.support.fakes.announcements import announced
from tests.support.mesh.waiting import wait_until
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.weights.receiver import TransferProgress, WeightReceiver
from trinity_bus.weights.transport import source_of
from workers.trainer.engines import Publisher

SECRET = "5e" * 32


def announcement(
    publisher: Publisher, version: int, checksum: str, *explorers: str, folder: Path | None = None, **changes: Any
) -> ModelVersion:
    """A version for these explorers, as the coordinator would announce it; the trainer has read it."""
    host, port = publisher.address
    staged: dict[str, Any] = {
        "method": publisher.method,
        "trainer_incarnation": "trainer-life",
        "master_address": host,
        "master_port": port,
        "checksum": checksum,
        "checkpoint": None if folder is None else str(folder),
        "secret": SECRET,
    }
    made = announced(version, *explorers, **staged | changes)
    publisher.admit(made)
    return made


def weights_of(seed: int, *, elements: int = 3000) -> dict[str, torch.Tensor]:
    """Tensors of several types and sizes, a part of them random."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(elements, generator=generator).bfloat16(),
        "a": torch.randn(7, 3, generator=generator),
        "none": torch.zeros(0, 4),
        "scalar": torch.tensor(float(seed)),
        "ids": torch.arange(5),
    }


def saved(directory: Path, version: int, weights: dict[str, torch.Tensor], keep: int = 3) -> Path:
    """A checkpoint of a version, as the trainer writes one."""
    save_file(weights, checkpoint.begin(directory, version) / "model.safetensors")
    return checkpoint.commit(
        directory, TrainingProgress(step=version, version=version), WrittenBy(dtype="x"), keep=keep
    )


def settled(receiver: WeightReceiver, limit_s: float = 60.0) -> TransferProgress:
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


def peer(*arguments: object) -> "subprocess.Popen[bytes]":
    """One end of a transfer in a process of its own, to be killed: see ``pulls``."""
    command = [sys.executable, "-m", "tests.support.faults.pulls", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def line_of(process: "subprocess.Popen[bytes]") -> bytes:
    """What a process prints next."""
    assert process.stdout is not None
    return process.stdout.readline()
