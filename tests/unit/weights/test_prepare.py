"""What is made of a version before it is taken: after it was verified, beside everything else, or not at all."""

import threading
from collections.abc import Iterator

import pytest
import torch

from tests.support.faults.transfers import announcement, pull
from tests.support.mesh.waiting import wait_until
from tests.support.narrowing import some
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.layout import TransferManifest, chunk_hash
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.transport import source_of


def model(value: float) -> dict[str, torch.Tensor]:
    return {f"layer.{i}": torch.full((100,), value + i) for i in range(3)}


@pytest.fixture
def server() -> Iterator[WeightServer]:
    made = WeightServer("127.0.0.2", bucket_bytes=1 << 8, timeout_s=5)
    yield made
    made.close()


class Preparation:
    """Notes what it is given; refuses one version, and stays in the middle of another."""

    def __init__(self, *, refused: int = -1, slow: int = -1) -> None:
        self.seen: dict[int, dict[str, torch.Tensor]] = {}
        self.refused, self.slow = refused, slow
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, manifest: TransferManifest, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        if manifest.version == self.refused:
            raise WeightTransferError("no such model")
        seen = self.seen[manifest.version] = {}
        for name, tensor in tensors:
            seen[name] = tensor.clone()
            if manifest.version == self.slow:
                self.begun.set()
                self.go_on.wait(10)


def test_what_is_verified_is_prepared_before_it_can_be_taken(server: WeightServer) -> None:
    preparation = Preparation()
    receiver = WeightReceiver(prepare=preparation)
    progress = pull(server, receiver, 0, server.stage(0, model(1).items()))
    assert progress.state == "ready", progress.error
    assert progress.received_at <= progress.verified_at <= progress.prepared_at
    assert all(torch.equal(preparation.seen[0][name], tensor) for name, tensor in model(1).items())
    assert [name for name, _ in receiver.take()] == list(model(1))


def test_other_bytes_than_were_announced_are_never_prepared(server: WeightServer) -> None:
    preparation = Preparation()
    receiver = WeightReceiver(prepare=preparation)
    checksum = server.stage(0, model(1).items())
    staged = server.staging._staged[0]
    buffers = [buffer for buffer in staged.buffers if isinstance(buffer, torch.Tensor)]
    buffers[0][3] ^= 1
    # The hashes of chunks are no protection against somebody who can choose them.
    staged.chunk_hashes = b"".join(chunk_hash(memoryview(buffer.numpy())) for buffer in buffers)
    assert "have digest" in pull(server, receiver, 0, checksum).error
    assert not preparation.seen


def test_a_version_that_cannot_be_prepared_fails_and_the_next_one_works(server: WeightServer) -> None:
    receiver = WeightReceiver(prepare=Preparation(refused=0))
    progress = pull(server, receiver, 0, server.stage(0, model(1).items()))
    assert (progress.state, progress.error) == ("failed", "WeightTransferError: no such model")
    with pytest.raises(WeightTransferError, match="no version is ready"):
        receiver.take()
    receiver.cancel()
    assert pull(server, receiver, 1, server.stage(1, model(2).items())).state == "ready"


def test_a_preparation_that_is_cancelled_ends_at_the_next_tensor(server: WeightServer) -> None:
    preparation = Preparation(slow=0)
    receiver = WeightReceiver(prepare=preparation)
    receiver.start(source_of(announcement(server, 0, server.stage(0, model(1).items()), "a"), "a", 5))
    assert preparation.begun.wait(10)
    transfer = some(receiver._transfer)
    receiver.cancel()
    preparation.go_on.set()
    wait_until(lambda: transfer.over)
    assert "cancelled" in transfer.progress.error
    assert len(preparation.seen[0]) == 1
    assert pull(server, receiver, 1, server.stage(1, model(2).items())).state == "ready"
    assert len(preparation.seen[1]) == 3


@pytest.mark.parametrize("rank", range(3))
def test_a_transfer_works_on_the_gpu_of_its_worker_and_not_on_the_first(
    server: WeightServer, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """In place of GPUs: which one a thread chooses, before anything of a transfer lies on it."""
    chosen: list[tuple[str, torch.device]] = []

    def choose(device: torch.device) -> None:
        chosen.append((threading.current_thread().name, device))

    monkeypatch.setattr(torch.cuda, "set_device", choose)
    receiver = WeightReceiver(device=torch.device("cuda", rank))
    checksum = server.stage(1, model(1.0).items())
    assert pull(server, receiver, 1, checksum).state == "ready"
    assert chosen == [("receive-weights", torch.device("cuda", rank))]
    on_cpu = WeightReceiver(device=torch.device("cpu"))
    assert pull(server, on_cpu, 1, checksum).state == "ready"
    assert len(chosen) == 1
