"""Taking versions from a trainer's memory, by TCP and over links: real servers, sockets, threads and processes."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from tests.support.faults.transfers import announcement, assert_takes, line_of, peer, pull, settled
from tests.support.faults.transfers import weights_of as model
from tests.support.mesh.waiting import wait_until
from tests.support.narrowing import some
from trinity_bus.runtime.frames import HEAD
from trinity_bus.weights.channel import ANSWER, OPENING_BYTES, REQUEST, WeightsRequest, meet
from trinity_bus.weights.errors import WeightTransferError, WireError
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.transport import source_of

BUCKET = 1 << 12


# More than the kernel buffers, in several buckets.
LARGE = {f"w{i}": torch.full((2 << 20,), float(i)) for i in range(6)}


@pytest.fixture(params=["memory", "gloo"])
def make_server(request: pytest.FixtureRequest) -> Iterator[Callable[..., WeightServer]]:
    made: list[WeightServer] = []
    method: Literal["memory", "gloo"] = request.param

    def make(bucket_bytes: int = BUCKET, timeout_s: float = 5) -> WeightServer:
        made.append(WeightServer(bucket_bytes=bucket_bytes, timeout_s=timeout_s, method=method))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def server(make_server: Callable[..., WeightServer]) -> WeightServer:
    return make_server()


@pytest.fixture
def receiver() -> Iterator[WeightReceiver]:
    made = WeightReceiver()
    yield made
    made.close()


@pytest.mark.parametrize("overlap", [True, False], ids=["hash beside", "hash after"])
def test_versions_are_taken_whole_and_proven(server: WeightServer, *, overlap: bool) -> None:
    receiver = WeightReceiver(overlap=overlap)
    # The last one is of another model, and the one before of another epoch.
    for version, (elements, epoch) in enumerate(((3000, 1), (3000, 1), (3000, 2), (40, 2))):
        weights = model(version, elements=elements)
        checksum = server.stage(version, weights.items())
        progress = pull(server, receiver, version, checksum, epoch=epoch)
        assert (progress.state, progress.checksum) == ("ready", checksum), progress.error
        assert_takes(receiver, weights)
    receiver.close()


def test_a_version_that_is_gone_is_refused_with_what_there_is(server: WeightServer, receiver: WeightReceiver) -> None:
    checksums = [server.stage(version, model(version).items()) for version in range(4)]
    gone = pull(server, receiver, 0, checksums[0])
    assert gone.error.startswith("VersionGoneError")
    assert "there are [2, 3]" in gone.error
    receiver.cancel()
    wrong = pull(server, receiver, 3, "0" * 64)
    assert "has checksum" in wrong.error
    receiver.cancel()
    assert pull(server, receiver, 3, checksums[3]).state == "ready"


def test_bytes_that_differ_from_their_checksum_are_not_ready(server: WeightServer, receiver: WeightReceiver) -> None:
    checksum = server.stage(0, model(0).items())
    buffer = server.staging._staged[0].buffers[0]
    assert isinstance(buffer, torch.Tensor)
    buffer[17] += 1
    progress = pull(server, receiver, 0, checksum)
    assert progress.state == "failed"
    assert ("have digest" if server.method == "gloo" else "has other bytes") in progress.error
    with pytest.raises(WeightTransferError, match="no version is ready: failed"):
        receiver.take()
    with pytest.raises(WeightTransferError, match="cancel it first"):
        pull(server, receiver, 0, checksum)


def test_many_take_a_version_at_once_each_at_its_own_pace_and_staging_goes_on() -> None:
    # The slow one comes back to its own when all others are done.
    server = WeightServer(bucket_bytes=BUCKET, timeout_s=60)
    weights = model(0, elements=1 << 20)
    checksum = server.stage(0, weights.items())
    slow = meet(source_of(announcement(server, 0, checksum, "slow"), "slow", 60), threading.Event())
    slow.send(REQUEST.encode(WeightsRequest(0, checksum)))
    ANSWER.decode(slow.receive(ANSWER.limit))
    receivers = [WeightReceiver() for _ in range(8)]
    for receiver in receivers:
        receiver.start(source_of(announcement(server, 0, checksum, "a"), "a", 10))
    for receiver in receivers:
        assert settled(receiver).state == "ready"
        assert_takes(receiver, weights)
        receiver.close()
    # The version before is what the slow one still gets, however many come after it.
    for version in range(1, 5):
        server.stage(version, model(version, elements=1 << 20).items())
    left = weights["w"].nbytes
    while left > 0:
        left -= len(slow.read(HEAD.unpack(slow.read(HEAD.size))[0]))
    slow.close()
    server.close()


def test_who_asks_for_nothing_or_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    server = WeightServer(bucket_bytes=BUCKET, timeout_s=1.0)
    leased, lease = threading.Event(), server.staging.lease

    def noted(*arguments: Any) -> Any:
        leased.set()
        return lease(*arguments)

    monkeypatch.setattr(server.staging, "lease", noted)
    checksum = server.stage(0, model(0, elements=8 << 20).items())
    mute = socket.create_connection(server.address)
    deaf = meet(source_of(announcement(server, 0, checksum, "deaf"), "deaf", 60), threading.Event())
    deaf.send(REQUEST.encode(WeightsRequest(0, checksum)))
    assert leased.wait(60)
    mute.settimeout(60)
    assert len(mute.recv(100)) == OPENING_BYTES
    assert mute.recv(1) == b""
    wait_until(lambda: not server._listener._members and not server._listener._strangers)
    assert server.staging._staged[0].leases == 0
    for one in (mute, deaf):
        one.close()
    server.close()


def test_nobody_or_a_silent_trainer_fails_by_the_time_limit_and_a_cancelled_transfer_at_once(
    server: WeightServer, receiver: WeightReceiver
) -> None:
    checksum = server.stage(0, model(0).items())
    announced = announcement(server, 0, checksum, "a")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = announced.model_copy(update={"master_port": silent.getsockname()[1]})
        receiver.start(source_of(there, "a", 0.2))
        assert "silent" in settled(receiver).error
        receiver.cancel()
        receiver.start(source_of(there, "a", 60))
        transfer = some(receiver._transfer)
        receiver.cancel()
        assert receiver.progress.state == "idle"
        wait_until(lambda: transfer.over)
    receiver.start(source_of(there, "a", 0.2))
    assert "no trainer answers" in settled(receiver).error
    receiver.cancel()
    assert pull(server, receiver, 0, checksum).state == "ready"


def test_a_member_killed_amid_a_transfer_costs_the_others_nothing(
    make_server: Callable[..., WeightServer], receiver: WeightReceiver
) -> None:
    server = make_server(1 << 20, 20)
    checksum = server.stage(0, LARGE.items())
    announcement(server, 0, checksum, "victim")
    with peer("take", *server.address, checksum, server.method) as victim:
        assert line_of(victim) == b"first\n"
        victim.send_signal(signal.SIGKILL)
        assert pull(server, receiver, 0, checksum, 20).state == "ready"
    assert_takes(receiver, LARGE)
    wait_until(lambda: server.staging._staged[0].leases == 0)
    # The next version goes to whoever is left, at once.
    weights, began = model(1), time.monotonic()
    assert pull(server, receiver, 1, server.stage(1, weights.items()), 20, epoch=2).state == "ready"
    assert time.monotonic() - began < 15
    assert_takes(receiver, weights)


def test_a_killed_trainer_fails_the_member_at_once_and_its_next_life_serves_it(receiver: WeightReceiver) -> None:
    with peer("serve", "127.0.0.1") as trainer:
        port, checksum = line_of(trainer).split()
        other = WeightServer()
        announced = announcement(other, 0, checksum.decode(), "a").model_copy(update={"master_port": int(port)})
        receiver.start(source_of(announced, "a", 60))
        # The trainer stops amid the bytes, and says so.
        assert line_of(trainer) == b"amid\n"
        trainer.send_signal(signal.SIGKILL)
        began = time.monotonic()
        assert settled(receiver).state == "failed"
        assert time.monotonic() - began < 40
    receiver.cancel()
    assert pull(other, receiver, 1, other.stage(1, model(3).items())).state == "ready"
    assert_takes(receiver, model(3))
    other.close()


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_member_without_a_gpu_says_at_once_that_nccl_brings_it_nothing(device: torch.device | None) -> None:
    server, receiver = WeightServer(method="gloo"), WeightReceiver(device=device)
    announced = announcement(server, 0, server.stage(0, model(0).items()), "a")
    receiver.start(replace(source_of(announced, "a", 30), method="nccl"))
    assert settled(receiver).error.endswith("set synchronizer.sync_method to memory")
    receiver.close()
    server.close()


def test_messages_are_looked_at_before_memory_is_taken() -> None:
    with pytest.raises(WireError, match=r"a message of \d+ bytes, at most"):
        REQUEST.encode(WeightsRequest(0, "0" * 5000))
    with pytest.raises(WireError, match="missing required field `refusal`"):
        ANSWER.decode(REQUEST.encode(WeightsRequest(0, "0" * 64)))
