"""Versions by way of an object store: what is written, read, removed and refused."""

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from schemas import ModelVersion
from tests.support.faults.transfers import announcement, assert_takes, settled, weights_of
from trinity_bus.config import SynchronizerSettings
from trinity_bus.errors import ConfigError
from trinity_bus.runtime import object_store
from trinity_bus.runtime.object_store import PIECE, ObjectStore, ObjectStoreError
from trinity_bus.weights import objects, receiver
from trinity_bus.weights.errors import TensorFileError
from trinity_bus.weights.objects import ObjectPublisher
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.receiver import TransferProgress, WeightReceiver
from trinity_bus.weights.transport import source_of

BUCKET = 1 << 12
RUN = "/" + "0" * 32

type Weights = Mapping[str, torch.Tensor]


class Mesh:
    """A trainer's end and a member, which both know the same address."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.store = ObjectStore(root + RUN)
        self.publisher = self.restarted()
        self.receiver = WeightReceiver()

    def restarted(self, **options: Any) -> ObjectPublisher:
        self.publisher = ObjectPublisher(self.root + RUN, **{"bucket_bytes": BUCKET, "timeout_s": 5, **options})
        return self.publisher

    def publish(self, version: int, weights: Weights, folder: Path | None = None) -> ModelVersion:
        checksum = self.publisher.stage(version, weights.items(), folder)
        self.publisher.durable(version)
        return announcement(self.publisher, version, checksum, "a")

    def take(self, announced: ModelVersion) -> TransferProgress:
        self.receiver.cancel()
        self.receiver.start(source_of(announced, "a", 5, object_url=self.root + "/"))
        return settled(self.receiver)

    def versions(self) -> list[int]:
        return sorted(int(name[9:17]) for name in self.store.names() if name.startswith("versions/"))


@pytest.fixture(params=["file", "memory"])
def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mesh]:
    made = Mesh(f"file://{tmp_path}/objects" if request.param == "file" else f"memory://{uuid.uuid4().hex}")
    yield made
    made.receiver.close()


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The pieces that were written and read."""
    found: dict[str, list[str]] = {"read": [], "write": []}

    def note(what: str) -> Callable[..., Any]:
        original = getattr(ObjectStore, what)

        def noting(self: ObjectStore, names: Mapping[str, Any]) -> Any:
            found[what] += [name for name in names if name.startswith("pieces/")]
            return original(self, names)

        return noting

    for what in found:
        monkeypatch.setattr(ObjectStore, what, note(what))
    return found


def test_versions_arrive_with_the_checksum_of_every_other_way(mesh: Mesh) -> None:
    server = WeightServer(bucket_bytes=BUCKET, method="gloo")
    for version in range(3):
        announced = mesh.publish(version, weights_of(version))
        assert announced.checksum == server.stage(version, weights_of(version).items())
        assert mesh.take(announced).checksum == announced.checksum
        assert_takes(mesh.receiver, weights_of(version))
    server.close()


def test_a_piece_that_stayed_as_it_was_is_neither_written_nor_read_again(
    mesh: Mesh, noted: dict[str, list[str]]
) -> None:
    mesh.restarted(bucket_bytes=2 * PIECE)
    count = PIECE // 4
    weights = {"frozen": torch.randn(2 * count), "trained": torch.randn(2 * count), "small": torch.ones(3)}
    mesh.take(mesh.publish(0, weights))
    assert [len(set(names)) for names in noted.values()] == [5, 5]
    for names in noted.values():
        names.clear()
    weights["trained"][count] += 1
    announced = mesh.publish(1, weights)
    assert mesh.take(announced).state == "ready"
    assert len(noted["write"]) == 1
    assert noted["read"] == noted["write"]
    assert_takes(mesh.receiver, weights)


def test_what_came_before_a_transfer_broke_off_is_not_read_again(
    mesh: Mesh, noted: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "AT_ONCE", 1)
    announced = mesh.publish(0, weights_of(0))
    last = noted["write"][-1]
    (piece,) = mesh.store.read({last: PIECE}).values()
    mesh.store.remove([last])
    noted["read"].clear()
    assert "FileNotFoundError" in mesh.take(announced).error
    mesh.store.write({last: piece})
    came = noted["read"][:-1]
    assert came
    noted["read"].clear()
    assert mesh.take(announced).state == "ready"
    assert not set(came) & set(noted["read"])


def test_the_next_transfer_waits_for_what_is_being_read_and_goes_on_from_it(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = mesh.publish(0, weights_of(0))
    original, being_read, goes_on = ObjectStore.read, threading.Event(), threading.Event()

    def slow(self: ObjectStore, sizes: Mapping[str, int]) -> dict[str, bytes]:
        if any(name.startswith("pieces/") for name in sizes):
            being_read.set()
            assert goes_on.wait(30)
        return original(self, sizes)

    monkeypatch.setattr(ObjectStore, "read", slow)
    monkeypatch.setattr(receiver, "_ENDING_S", 0.0)
    source = source_of(announced, "a", 90, object_url=mesh.root)
    mesh.receiver.start(source)
    assert being_read.wait(30)
    resources = mesh.receiver.resources
    mesh.receiver.cancel()
    mesh.receiver.start(source)
    threading.Timer(0.2, goes_on.set).start()
    assert settled(mesh.receiver).state == "ready"
    assert mesh.receiver.resources is resources


def test_a_piece_that_was_removed_is_written_again(mesh: Mesh) -> None:
    mesh.publish(0, weights_of(0))
    mesh.store.remove([name for name in mesh.store.names() if name.startswith("pieces/")])
    assert mesh.take(mesh.publish(1, weights_of(0))).state == "ready"


def test_a_version_that_was_written_meanwhile_is_durable(mesh: Mesh) -> None:
    mesh.publish(0, weights_of(0))
    mesh.publisher.durable(0)


def test_old_versions_go_and_neither_the_served_one_nor_pieces_that_others_need(mesh: Mesh) -> None:
    mesh.restarted(keep=2)
    first = mesh.publish(0, weights_of(0))
    mesh.publisher.keep(0)
    for version in range(1, 5):
        newest = mesh.publish(version, {**weights_of(0), "scalar": torch.tensor(float(version))})
    assert mesh.versions() == [0, 3, 4]
    for announced in (newest, first):
        assert mesh.take(announced).state == "ready", mesh.receiver.progress.error
    mesh.publisher.keep(5)
    mesh.publish(5, weights_of(5))
    mesh.publish(6, weights_of(5))
    assert mesh.versions() == [5, 6]
    kept = {name for name in mesh.store.names() if name.startswith("pieces/")}
    assert kept == {name for name in mesh.publisher._store.written if name.startswith("pieces/")}
    assert "FileNotFoundError" in mesh.take(first).error


def test_a_new_life_mends_what_was_damaged_and_removes_what_is_not_its_own(mesh: Mesh) -> None:
    announced = mesh.publish(0, weights_of(0))
    pieces = [name for name in mesh.store.names() if name.startswith("pieces/")]
    (data,) = mesh.store.read({pieces[0]: PIECE}).values()
    mesh.store.write({pieces[0]: bytes([data[0] ^ 1]) + data[1:]})
    assert "has other bytes than it should have" in mesh.take(announced).error
    mesh.store.write({pieces[0]: data[:-1]})
    assert "has other bytes than it should have" in mesh.take(announced).error
    mesh.store.write({pieces[0]: data + b"more"})
    assert "more than the" in mesh.take(announced).error
    mesh.store.write({"pieces/ab.partial": b"half", "versions/of somebody": b"else"})
    mesh.restarted()
    mesh.publish(0, weights_of(0))
    assert mesh.take(announced).state == "ready"
    assert len(mesh.store.names()) == len(pieces) + 1


def test_a_trainer_that_is_killed_amid_writing_leaves_no_version(tmp_path: Path) -> None:
    mesh = Mesh(f"file://{tmp_path}/objects")
    command = [sys.executable, "-m", "tests.support.faults.uploads", mesh.root + RUN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"amid\n"
        trainer.kill()
    assert len(mesh.store.names()) == 1
    assert mesh.versions() == []
    checksum = mesh.publisher.staging.stage(1, weights_of(1).items()).checksum
    assert "FileNotFoundError" in mesh.take(announcement(mesh.publisher, 1, checksum, "a")).error
    assert mesh.take(mesh.publish(1, weights_of(1))).state == "ready"
    assert_takes(mesh.receiver, weights_of(1))
    mesh.receiver.close()


@pytest.mark.parametrize(
    "change",
    [
        {"master_address": "memory://elsewhere" + RUN},
        {"master_address": RUN},
        {"master_address": "memory://here/../elsewhere" + RUN},
        {"master_address": "memory://here" + RUN + "/.."},
        {"master_address": "memory://here"},
        {"master_address": "simplecache::memory://here" + RUN},
        {"master_address": "memory://here" + RUN + "\n"},
        {"checksum": "../" * 3 + "secret"},
    ],
)
def test_an_announcement_that_names_another_place_is_refused(change: dict[str, str]) -> None:
    mesh = Mesh("memory://here")
    announced = mesh.publish(0, weights_of(0))
    assert "synchronizer.object_url alone" in mesh.take(announced.model_copy(update=change)).error
    mesh.receiver.cancel()
    mesh.receiver.start(source_of(announced, "a", 5))
    assert "which is not set" in settled(mesh.receiver).error


def test_a_version_that_names_other_pieces_than_were_announced_is_refused(mesh: Mesh) -> None:
    announced = mesh.publish(0, weights_of(0))
    (name,) = (name for name in mesh.store.names() if name.startswith("versions/"))
    (data,) = mesh.store.read({name: 1 << 20}).values()
    mesh.store.write({name: data[:-1] + bytes([data[-1] ^ 1])})
    assert "are not those that were announced" in mesh.take(announced).error
    mesh.store.write({name: data[:-32]})
    assert "are not those that were announced" in mesh.take(announced).error
    mesh.store.write({name: data[1:]})
    assert "ManifestError" in mesh.take(announced).error


def test_publishing_is_tried_again_until_the_time_limit(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [2]
    original = ObjectStore.write

    def failing(self: ObjectStore, found: Mapping[str, bytes]) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise ObjectStoreError("it is gone")
        original(self, found)

    monkeypatch.setattr(ObjectStore, "write", failing)
    monkeypatch.setattr(object_store, "_FIRST_PAUSE_S", 0.01)
    assert mesh.take(mesh.publish(0, weights_of(0))).state == "ready"
    left[0] = 1000
    mesh.restarted(timeout_s=0.2)
    with pytest.raises(ObjectStoreError, match="it is gone"):
        mesh.publish(1, weights_of(1))


def test_old_versions_that_cannot_be_removed_are_removed_later(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh.restarted(keep=1)
    with monkeypatch.context() as refusing:

        def refuse(_: ObjectStore, names: list[str]) -> None:
            if names:
                raise ObjectStoreError("forbidden")

        refusing.setattr(ObjectStore, "remove", refuse)
        for version in range(3):
            mesh.publish(version, weights_of(version))
        assert mesh.versions() == [0, 1, 2]
    mesh.publish(3, weights_of(3))
    assert mesh.versions() == [3]


def test_files_that_have_changed_since_they_were_hashed_are_not_published(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    mesh, weights = Mesh(f"memory://{uuid.uuid4().hex}"), {"w": torch.ones(8)}
    save_file({"w": torch.zeros(8)}, tmp_path / "model.safetensors")
    with pytest.raises(TensorFileError, match="have changed since it was hashed"):
        mesh.publish(0, weights, tmp_path)
    assert mesh.store.names() == []


@pytest.mark.parametrize("url", ["s3://key:secret@bucket", "s3://bucket?key=x", "simplecache::s3://bucket", "/folder"])
def test_an_address_has_no_credentials_and_no_wrappings(url: str) -> None:
    with pytest.raises(ValidationError):
        SynchronizerSettings(object_url=url)


def test_a_filesystem_that_cannot_be_made_is_an_error_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise ValueError("bad endpoint")

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    with pytest.raises(ObjectStoreError, match="memory://x: ValueError: bad endpoint"):
        ObjectStore("memory://x")


def test_an_address_that_no_package_knows_is_refused_with_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"trinity-bus\[objects\]"):
        ObjectStore("nothing-like-it://bucket")
