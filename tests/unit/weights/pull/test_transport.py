"""Taking versions from a trainer's memory: a real server and real sockets, between threads and between processes."""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.support.faults.transfers import announcement, assert_takes, line_of, peer, pull, settled
from tests.support.mesh.waiting import wait_until
from tests.support.narrowing import some
from trinity_bus.runtime.frames import HEAD
from trinity_bus.weights.channel import OPENING_BYTES, meet
from trinity_bus.weights.errors import LinkError, WireError
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.transport import source_of
from trinity_bus.weights.wire import ANSWER, REQUEST, WeightsRequest

BUCKET = 1 << 12


def model(seed: int, *, elements: int = 3000) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(elements, generator=generator).bfloat16(),
        "v": torch.randn(7, 3, generator=generator),
        "scalar": torch.tensor(float(seed)),
    }


def step(weights: dict[str, torch.Tensor], changed: int) -> dict[str, torch.Tensor]:
    """The next version: a few values of one tensor are others."""
    after = {name: tensor.clone() for name, tensor in weights.items()}
    after["w"][:changed] += 1
    return after


@pytest.fixture
def server() -> Iterator[WeightServer]:
    made = WeightServer(bucket_bytes=BUCKET, timeout_s=5)
    yield made
    made.close()


@pytest.fixture
def receiver() -> Iterator[WeightReceiver]:
    made = WeightReceiver()
    yield made
    made.close()


def test_versions_are_taken_whole_and_proven(server: WeightServer, receiver: WeightReceiver) -> None:
    for version in range(3):
        checksum = server.stage(version, model(version).items())
        progress = pull(server, receiver, version, checksum)
        assert progress.state == "ready", progress.error
        assert progress.checksum == checksum
        assert_takes(receiver, model(version))


def test_a_version_of_another_model_is_sent_whole(server: WeightServer, receiver: WeightReceiver) -> None:
    pull(server, receiver, 0, server.stage(0, model(0).items()))
    receiver.take()
    other = model(0, elements=40)
    pull(server, receiver, 1, server.stage(1, other.items()))
    assert_takes(receiver, other)


def test_a_version_that_is_gone_is_refused_with_what_there_is(server: WeightServer, receiver: WeightReceiver) -> None:
    weights = [model(0)]
    checksums = []
    for version in range(4):
        checksums.append(server.stage(version, weights[-1].items()))
        if version == 2:
            pull(server, receiver, 2, checksums[2])
            receiver.take()
        weights.append(step(weights[-1], 5))
    gone = pull(server, receiver, 0, checksums[0])
    assert gone.error.startswith("VersionGoneError")
    assert "there are [2, 3]" in gone.error
    receiver.cancel()
    wrong = pull(server, receiver, 3, "0" * 64)
    assert "has checksum" in wrong.error
    receiver.cancel()
    assert pull(server, receiver, 3, checksums[3]).state == "ready"


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
        server.stage(version, step(weights, version).items())
    assert len(slow.read(weights["w"].nbytes)) == weights["w"].nbytes
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
    wait_until(lambda: server.staging._staged[0].leases == 0)
    mute.settimeout(60)
    assert len(mute.recv(100)) == OPENING_BYTES
    assert mute.recv(1) == b""
    wait_until(lambda: not server._listener._members and not server._listener._strangers)
    for one in (mute, deaf):
        one.close()
    server.close()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xff\xff\xff",
        HEAD.pack(3) + b"abc",
        HEAD.pack(1) + b"\xc1",
        HEAD.pack(1) + b"\x80",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_is_dropped(server: WeightServer, receiver: WeightReceiver, message: bytes) -> None:
    checksum = server.stage(0, model(0).items())
    # What the stranger has sent and nobody has read may make of the end a reset.
    with socket.create_connection(server.address) as stranger, contextlib.suppress(OSError):
        stranger.sendall(message)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(5)
        # The challenge is all that anyone gets.
        assert len(stranger.recv(100)) == OPENING_BYTES
        assert stranger.recv(1) == b""
    assert pull(server, receiver, 0, checksum).state == "ready"


def test_nobody_or_a_silent_trainer_fails_by_the_time_limit(server: WeightServer, receiver: WeightReceiver) -> None:
    announced = announcement(server, 0, "0" * 64, "a")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        receiver.start(source_of(announced.model_copy(update={"master_port": silent.getsockname()[1]}), "a", 0.2))
        assert "silent" in settled(receiver).error
        port = silent.getsockname()[1]
    receiver.cancel()
    receiver.start(source_of(announced.model_copy(update={"master_port": port}), "a", 0.2))
    assert "no trainer answers" in settled(receiver).error


def test_a_cancelled_transfer_ends_within_moments(server: WeightServer, receiver: WeightReceiver) -> None:
    checksum = server.stage(0, model(0).items())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        announced = announcement(server, 0, checksum, "a")
        receiver.start(source_of(announced.model_copy(update={"master_port": silent.getsockname()[1]}), "a", 60))
        transfer = some(receiver._transfer)
        receiver.cancel()
        wait_until(lambda: transfer.over)
    assert pull(server, receiver, 0, checksum).state == "ready"


def test_a_thread_that_hangs_counts_as_failed(receiver: WeightReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()

    def hang(*_: object) -> None:
        held.wait(30)
        raise LinkError("it has ended at last")

    monkeypatch.setattr("trinity_bus.weights.receiver._GRACE_S", 0.0)
    monkeypatch.setattr("trinity_bus.weights.pull.transport.PullTransport.open", hang)
    server = WeightServer()
    assert "nothing has moved" in pull(server, receiver, 0, "0" * 64, timeout_s=0.05).error
    receiver.cancel()
    assert receiver.progress.state == "idle"
    held.set()
    server.close()


def test_a_killed_member_leaves_the_trainer_free_and_others_served(receiver: WeightReceiver) -> None:
    server = WeightServer(bucket_bytes=1 << 20, timeout_s=20)
    # More than the kernel buffers, in several buckets.
    weights = {f"w{i}": torch.full((2 << 20,), float(i)) for i in range(6)}
    checksum = server.stage(0, weights.items())
    announcement(server, 0, checksum, "victim")
    with peer("take", *server.address, checksum) as victim:
        assert line_of(victim) == b"first\n"
        assert server.staging._staged[0].leases == 1
        victim.send_signal(signal.SIGKILL)
        wait_until(lambda: server.staging._staged[0].leases == 0)
    assert pull(server, receiver, 0, checksum, 10).state == "ready"
    assert_takes(receiver, weights)
    server.close()


def test_a_killed_trainer_fails_the_member_at_once_and_its_next_life_serves_it(receiver: WeightReceiver) -> None:
    with peer("serve") as trainer:
        port, checksum = line_of(trainer).split()
        other = WeightServer()
        announced = announcement(other, 0, checksum.decode(), "a").model_copy(update={"master_port": int(port)})
        receiver.start(source_of(announced, "a", 60))
        # The trainer stops amid the bytes, and says so.
        assert line_of(trainer) == b"amid\n"
        trainer.send_signal(signal.SIGKILL)
        began = time.monotonic()
        progress = settled(receiver)
        assert progress.state == "failed"
        assert time.monotonic() - began < 10
    receiver.cancel()
    weights = model(3)
    assert pull(other, receiver, 1, other.stage(1, weights.items())).state == "ready"
    assert_takes(receiver, weights)
    other.close()


def test_messages_are_looked_at_before_memory_is_taken() -> None:
    with pytest.raises(WireError, match=r"a message of \d+ bytes, at most"):
        REQUEST.encode(WeightsRequest(0, "0" * 5000))
    with pytest.raises(WireError, match="missing required field `refusal`"):
        ANSWER.decode(REQUEST.encode(WeightsRequest(0, "0" * 64)))
