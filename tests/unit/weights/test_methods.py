"""Every method with one, two and five members: real publishers, real receivers in threads, rounds and late joiners."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from schemas import ModelVersion
from tests.support.faults.transfers import announcement, saved, settled
from tests.support.mesh.waiting import wait_until
from trinity_bus.config import SynchronizerSettings, TrainerSettings
from trinity_bus.training import checkpoint
from trinity_bus.weights import layout
from trinity_bus.weights.layout import ContentHash
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.staging import Staging
from trinity_bus.weights.transport import source_of
from workers.trainer.engines import Publisher, make_publisher

METHODS = get_args(SynchronizerSettings.model_fields["sync_method"].annotation)
TIMEOUT_S = 10.0


def model(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {f"layer.{i}": torch.randn(1 << 17, generator=generator) for i in range(5)}


class Mesh:
    """A trainer that publishes by one method, and members."""

    def __init__(self, method: str, folder: Path, *, in_files: bool = False) -> None:
        self.directory = folder
        self.in_files = in_files
        self.publisher: Publisher = make_publisher(
            TrainerSettings(bucket_mib=1),
            SynchronizerSettings(sync_method=method, sync_timeout_s=TIMEOUT_S, object_url=f"file://{folder}/objects"),
            folder,
            "cpu",
        )
        self.members: dict[str, WeightReceiver] = {}

    def publish(self, version: int) -> tuple[int, str]:
        folder = saved(self.directory, version, model(version))
        checksum = self.publisher.stage(version, model(version).items(), folder if self.in_files else None)
        self.publisher.durable(version)
        return version, checksum

    def announce(self, published: tuple[int, str], epoch: int, *names: str) -> ModelVersion:
        """Begin to serve a round, as the trainer's service does."""
        version, checksum = published
        folder = checkpoint.of_step(self.directory, version)
        announced = announcement(self.publisher, version, checksum, *names, epoch=epoch, folder=folder)
        self.publisher.keep(version)
        return announced

    def take(self, announced: ModelVersion) -> None:
        """All members at once, each proving what it got."""
        for member in announced.members:
            receiver = self.members.setdefault(member.explorer, WeightReceiver())
            where = f"file://{self.directory}/objects"
            receiver.start(source_of(announced, member.explorer, TIMEOUT_S, object_url=where))
        for member in announced.members:
            progress = settled(self.members[member.explorer])
            assert progress.state == "ready", progress.error
            assert progress.checksum == announced.checksum
            got = dict(self.members[member.explorer].take())
            assert all(torch.equal(got[name], tensor) for name, tensor in model(announced.version).items())

    def close(self) -> None:
        for receiver in self.members.values():
            receiver.close()
        self.publisher.close()


@pytest.fixture(params=[(method, in_files) for method in METHODS for in_files in (False, True)], ids=str)
def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mesh]:
    made = Mesh(request.param[0], tmp_path, in_files=request.param[1])
    yield made
    made.close()


@pytest.mark.parametrize("members", [1, 2, 5])
def test_all_members_take_version_after_version_and_a_late_one_takes_the_present(mesh: Mesh, members: int) -> None:
    names = [f"explorer-{i}" for i in range(members)]
    for version in range(3):
        mesh.take(mesh.announce(mesh.publish(version), 1, *names))
    # The next round is of the joiner alone, with the version that the others serve.
    published = mesh.publish(3)
    mesh.take(mesh.announce(published, 1, *names))
    mesh.take(mesh.announce(published, 2, "joiner"))
    mesh.take(mesh.announce(mesh.publish(4), 3, *names, "joiner"))


def test_the_next_bucket_is_gathered_while_the_one_before_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = threading.Event()

    class Noting(ContentHash):
        def put(self, buffer: Any) -> list[Future[tuple[bytes, bytes]]]:
            pieces = super().put(buffer)
            # Whatever has been hashed by now was hashed while the iteration below went on.
            wait_until(lambda: all(piece.done() for piece in self._pieces), "a thread to hash the bucket")
            hashed.set()
            return pieces

    monkeypatch.setattr(layout, "ContentHash", Noting)

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.ones(300)
        yield "b", torch.ones(300)
        # The bucket of "a" was closed for "b": it is with the thread, and this is not.
        assert hashed.is_set()
        yield "c", torch.ones(300)

    manifest = Staging(bucket_bytes=1500, retain=1).stage(0, tensors())
    assert [meta.name for meta in manifest.tensors] == ["a", "b", "c"]
