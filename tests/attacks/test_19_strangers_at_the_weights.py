"""Strangers at the trainer's port, and at a member that asks for weights: they know all but the secret.

Real publishers, receivers and sockets. What is public is taken to be everything but the secret of the announcement: the
addresses, the version, its checksum, the member's name.
"""

import contextlib
import io
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgpack
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from schemas import ModelVersion
from schemas.codec import decode, encode
from schemas.topics import MODEL_VERSIONS
from tests.support.faults.transfers import announcement, settled
from tests.support.mesh.certificates import certificate
from tests.support.mesh.waiting import wait_until
from trinity_bus import awake
from trinity_bus.bus import Bus, Producer
from trinity_bus.config import Settings, SynchronizerSettings, TrainerSettings
from trinity_bus.coordination.effects import Write
from trinity_bus.errors import ConfigError
from trinity_bus.view import MeshState
from trinity_bus.weights import channel, listener
from trinity_bus.weights.channel import (
    ENTRY,
    NONCE_BYTES,
    OPENING_BYTES,
    PROTOCOL,
    Channel,
    Handshake,
    StoreEntry,
    meet,
    message_code,
)
from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.layout import TransferManifest
from trinity_bus.weights.link import Link, _listening
from trinity_bus.weights.link_store import LinkStore
from trinity_bus.weights.listener import Keyring
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.transport import source_of
from workers.coordinator.log_facts import Lanes
from workers.coordinator.outputs import Outputs
from workers.coordinator.pending_commit import Spans
from workers.trainer.engines import Publisher, make_publisher
from workers.watch import mesh

WEIGHTS = {"w": torch.arange(3000.0), "v": torch.ones(7, 3)}
WRONG = "00" * 32
GREETING = b"TBwt" + PROTOCOL.to_bytes(2)


@pytest.fixture(params=["nccl", "memory"])
def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Publisher]:
    sync = SynchronizerSettings(sync_method=request.param, sync_timeout_s=5)
    made = make_publisher(TrainerSettings(bucket_mib=1), sync, tmp_path, "cpu")
    yield made
    made.close()


@pytest.fixture
def receiver() -> Iterator[WeightReceiver]:
    made = WeightReceiver()
    yield made
    made.close()


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """Both ends of a connection, and the trainer's own."""
    ours, theirs = socket.socketpair()
    never = threading.Event()
    trainer, member = (Channel(one, timeout_s=1, cancelled=never) for one in (ours, theirs))
    yield trainer, member, ours
    trainer.close()
    member.close()


@pytest.fixture
def announced() -> ModelVersion:
    """A version that nobody publishes."""
    publisher = WeightServer()
    made = announcement(publisher, 5, "0" * 64, "a")
    publisher.close()
    return made


def assert_serves(receiver: WeightReceiver, announced: ModelVersion, cafile: Path | None = None) -> None:
    """Whatever has been done to it, the trainer serves a member."""
    receiver.start(source_of(announced, "a", 5, cafile))
    progress = settled(receiver)
    assert progress.state == "ready", progress.error
    assert all(torch.equal(tensor, WEIGHTS[name]) for name, tensor in receiver.take())


def hello(who: str, nonce: bytes, proof: bytes) -> bytes:
    body: bytes = msgpack.packb({"who": who, "nonce": nonce, "proof": proof, "protocol": PROTOCOL})
    return len(body).to_bytes(4) + body


def what_is_told(address: tuple[str, int], *said: bytes) -> bytes:
    """Everything that a stranger hears who says this, until it is thrown out."""
    heard = b""
    with socket.create_connection(address, timeout=20) as stranger, contextlib.suppress(ConnectionResetError):
        for part in said:
            stranger.sendall(part)
        while piece := stranger.recv(1 << 16):
            heard += piece
    return heard


def test_a_stranger_hears_a_random_number_and_nothing_else(
    publisher: Publisher, receiver: WeightReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = announcement(publisher, 3, publisher.stage(3, WEIGHTS.items()), "a")
    who = "trainer-life/1/a"
    # What the protocol before said to whoever asked; and torch's store, which anyone could write into.
    asked = msgpack.packb({"version": 3, "checksum": announced.checksum, "held": None, "who": who})
    monkeypatch.setattr(channel, "MEETING_S", 1.0)
    heard = [
        what_is_told(publisher.address, len(asked).to_bytes(4) + asked),
        what_is_told(publisher.address, hello(who, os.urandom(32), os.urandom(32))),
        what_is_told(publisher.address, hello("trainer-life/1/b", os.urandom(32), os.urandom(32))),
        what_is_told(publisher.address, b"GET / HTTP/1.1\r\n\r\n"),
        what_is_told(publisher.address, b"\xff" * 4096),
    ]
    assert {len(text) for text in heard} == {OPENING_BYTES}
    assert len(set(heard)) == len(heard)
    monkeypatch.undo()
    assert_serves(receiver, announced)


def test_a_member_with_another_secret_is_not_let_in(publisher: Publisher, receiver: WeightReceiver) -> None:
    announced = announcement(publisher, 0, publisher.stage(0, WEIGHTS.items()), "a")
    receiver.start(replace(source_of(announced, "a", 1), secret=WRONG))
    assert "did not prove itself" in settled(receiver).error
    receiver.cancel()
    # Nor is one that the announcement does not name, though it can read it.
    receiver.start(source_of(announced, "b", 1))
    assert "did not prove itself" in settled(receiver).error
    receiver.cancel()
    assert_serves(receiver, announced)


def test_a_member_takes_nothing_from_who_does_not_know_the_secret(
    publisher: Publisher, receiver: WeightReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = announcement(publisher, 0, publisher.stage(0, WEIGHTS.items()), "a")
    took: list[bytes] = []

    def pretend() -> None:
        connection, _ = liar.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(GREETING + os.urandom(NONCE_BYTES))
            took.append(connection.recv(4096))
            # Its own proof, as if it were the trainer's.
            connection.sendall(took[0][-32:])
            manifest = TransferManifest(0, "0" * 64, 1 << 20, ())
            connection.sendall(manifest.to_json() * 100)

    with socket.create_server(("127.0.0.1", 0)) as liar:
        thread = threading.Thread(target=pretend)
        thread.start()
        receiver.start(source_of(announced.model_copy(update={"master_port": liar.getsockname()[1]}), "a", 5))
        progress = settled(receiver)
        thread.join()
    assert "does not know the secret" in progress.error
    assert not receiver.resources.buffers
    # What it was told is of no use to anybody else.
    assert announced.secret is not None
    assert bytes.fromhex(announced.secret) not in took[0]
    monkeypatch.setattr(channel, "MEETING_S", 1.0)
    assert len(what_is_told(publisher.address, took[0])) == OPENING_BYTES
    monkeypatch.undo()
    receiver.cancel()
    assert_serves(receiver, announced)


def test_an_announcement_without_a_secret_lets_nobody_in(publisher: Publisher, receiver: WeightReceiver) -> None:
    checksum = publisher.stage(0, WEIGHTS.items())
    announced = announcement(publisher, 0, checksum, "a", epoch=7)
    void = announced.model_copy(update={"secret": None, "epoch": 8})
    publisher.admit(void)
    receiver.start(source_of(void, "a", 1))
    assert "carries no secret" in settled(receiver).error
    receiver.cancel()
    receiver.start(replace(source_of(void, "a", 1), secret=WRONG))
    assert "did not prove itself" in settled(receiver).error


def test_a_member_may_have_read_the_announcement_before_the_trainer(
    publisher: Publisher, receiver: WeightReceiver
) -> None:
    announced = announcement(publisher, 0, publisher.stage(0, WEIGHTS.items()), "a")
    later = announced.model_copy(update={"epoch": 2, "secret": "77" * 32})
    receiver.start(source_of(later, "a", 5))
    wait_until(lambda: len(_listener(publisher)._strangers) == 1)
    publisher.admit(later)
    assert settled(receiver).state == "ready"


def test_strangers_are_bounded_and_keep_no_member_out(
    publisher: Publisher, receiver: WeightReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_STRANGERS", 8)
    announced = announcement(publisher, 0, publisher.stage(0, WEIGHTS.items()), "a")
    with contextlib.ExitStack() as strangers:
        for _ in range(40):
            strangers.enter_context(socket.create_connection(publisher.address))
        wait_until(lambda: len(_listener(publisher)._strangers) <= 8)
        assert_serves(receiver, announced)


def test_a_process_with_as_many_threads_as_it_may_have_serves_members_again_when_it_has_fewer(
    publisher: Publisher, receiver: WeightReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = announcement(publisher, 0, publisher.stage(0, WEIGHTS.items()), "a")
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("serve-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with socket.create_connection(publisher.address, timeout=20) as stranger:
            assert stranger.recv(1) == b""
    assert not _listener(publisher)._strangers
    assert_serves(receiver, announced)


@contextlib.contextmanager
def counted(publisher: Publisher, announced: ModelVersion, explorer: str) -> Iterator[Channel]:
    """Provide a connection of a member that the trainer has counted.

    Its thread does so a moment after both have proven themselves, and that of the next one might be quicker.
    """
    channel = meet(source_of(announced, explorer, 5), threading.Event())
    try:
        wait_until(lambda: _newest_of(publisher, explorer) == channel._connection.getsockname())
        yield channel
    finally:
        channel.close()


def test_connections_of_one_member_are_bounded_however_many_epochs_name_it(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PER_MEMBER", 2)
    checksum = publisher.stage(0, WEIGHTS.items())
    channels: list[Channel] = []
    with contextlib.ExitStack() as stack:
        for epoch in range(1, 7):
            announced = announcement(publisher, 0, checksum, "a", "b", epoch=epoch)
            channels.append(stack.enter_context(counted(publisher, announced, "a")))
        other = stack.enter_context(counted(publisher, announced, "b"))
        wait_until(lambda: sum(one.is_open() for one in channels) <= 2)
        assert channels[-1].is_open()
        assert other.is_open(), "another member's are counted by themselves"


def test_a_member_that_lies_costs_its_own_transfer_alone(publisher: Publisher, receiver: WeightReceiver) -> None:
    checksum = publisher.stage(0, WEIGHTS.items())
    announced = announcement(publisher, 0, checksum, "a", "liar")
    lies = [b"", b"\xc1", msgpack.packb({"key": 5}), msgpack.packb([1]), b"\x80", os.urandom(1000)]
    for lie in lies:
        met = meet(source_of(announced, "liar", 5), threading.Event())
        with contextlib.suppress(LinkError):
            met.send(lie)
        met.close()
    receiver.start(source_of(announced, "a", 5))
    assert settled(receiver).state == "ready"


def test_a_message_of_somebody_in_between_ends_the_transfer(
    channels: tuple[Channel, Channel, socket.socket],
) -> None:
    trainer, member, ours = channels
    key = os.urandom(32)
    trainer.secure(key, "trainer")
    member.secure(key, "member")
    trainer.send(b"one")
    assert member.receive(10) == b"one"
    # The same once more, as it was overheard; and one that came back from where it went.
    for sender, number in (("trainer", 0), ("member", 0)):
        ours.sendall((3).to_bytes(4) + message_code(key, sender, number, b"one") + b"one")  # type: ignore[arg-type]
        with pytest.raises(LinkError, match="somebody is in between"):
            member.receive(10)


def test_a_store_of_a_link_takes_so_much_and_no_more(channels: tuple[Channel, Channel, socket.socket]) -> None:
    trainer, member, _ = channels
    store = LinkStore(member, 1)

    def flood() -> None:
        with contextlib.suppress(LinkError):
            for number in range(1000):
                trainer.secure(b"", "trainer")
                trainer.send(ENTRY.encode(StoreEntry(str(number), b"x")))

    thread = threading.Thread(target=flood)
    thread.start()
    with pytest.raises(Exception, match="an entry too many"):
        store.wait(["never"])
    member.close()
    thread.join()


@given(st.text(max_size=20), st.text(max_size=20), st.binary(min_size=32, max_size=32), st.binary(max_size=40))
def test_proofs_differ_wherever_anything_does(who: str, other: str, secret: bytes, challenge: bytes) -> None:
    meeting = Handshake(who, challenge, b"n" * 32)
    proofs = {
        meeting.proof(secret, "member"),
        meeting.proof(secret, "trainer"),
        meeting.key(secret),
        meeting.proof(secret[::-1] + b"x", "member"),
        Handshake(who + "x", challenge, b"n" * 32).proof(secret, "member"),
        Handshake(who, challenge + b"n", b"n" * 31).proof(secret, "member"),
        Handshake(other + who + "y", challenge, b"n" * 32).proof(secret, "member"),
    }
    assert len(proofs) == 7


def test_members_of_old_epochs_are_let_in_no_more() -> None:
    keyring = Keyring()
    for epoch in range(20):
        keyring.add(f"trainer-life/{epoch}/", os.urandom(32), ["a"])

    def is_let_in(who: str) -> bool:
        return keyring.find(who, lambda _: True, 0.0) is not None

    assert not is_let_in("trainer-life/3/a")
    assert is_let_in("trainer-life/19/a")
    assert not is_let_in("trainer-life/19/b")
    assert keyring.find("trainer-life/19/a", lambda _: False, awake.now() + 0.1) is None


def test_a_secret_is_in_the_record_and_nowhere_else(announced: ModelVersion) -> None:
    assert announced.secret is not None
    assert announced.secret not in repr(announced)
    assert announced.secret not in str(announced)
    assert announced.secret not in repr(source_of(announced, "a", 5))
    assert decode(encode(announced), ModelVersion).secret == announced.secret


class NotingProducer:
    """FAKE: keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[ModelVersion] = []

    async def send(self, _topic: object, _key: str, record: ModelVersion, **_: object) -> None:
        self.sent.append(record)


async def test_the_coordinator_gives_each_announcement_a_secret_that_nobody_can_foresee(
    announced: ModelVersion,
) -> None:
    decided = announced.model_copy(update={"secret": None})
    producer = NotingProducer()

    lanes = Lanes(cast("Bus", None), time.monotonic)
    with Spans("trinity") as spans:
        for _ in range(3):
            await Outputs(cast("Producer", producer)).carry_out(
                [Write(MODEL_VERSIONS, decided.model, decided)], {}, spans, lanes
            )
    secrets = [sent.secret or "" for sent in producer.sent]
    assert len(set(secrets)) == 3
    assert all(re.fullmatch("[0-9a-f]{64}", secret) for secret in secrets)


def test_status_does_not_show_a_secret(announced: ModelVersion) -> None:
    view = MeshState()
    view.apply(announced, 1.0)
    out = io.StringIO()
    Console(file=out, width=300).print(mesh(view))
    assert "version 5" in out.getvalue()
    assert (announced.secret or "") not in out.getvalue()


def test_ports_are_chosen_by_the_operator() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LinkError, match=f"port {port}"):
            WeightServer(ports=[port])
        made = WeightServer(ports=range(port, port + 50))
        assert port < made.address[1] < port + 50
        made.close()


@pytest.mark.parametrize(("value", "ports"), [("0", [0]), ("7000", [7000]), ("7000-7002", [7000, 7001, 7002])])
def test_ports_in_settings(value: str, ports: list[int]) -> None:
    assert list(TrainerSettings(weights_port=value).weights_ports) == ports


@pytest.mark.parametrize("value", ["x", "-1", "70000", "7002-7000", "0-5", "7000-"])
def test_wrong_ports_in_settings(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_BUS_TRAINER__WEIGHTS_PORT", value)
    with pytest.raises(ConfigError, match="expected a port, or a range"):
        Settings()


def test_pulls_by_tls_are_read_by_nobody_in_between(
    tmp_path: Path, receiver: WeightReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    own, key = certificate(tmp_path, "trainer")
    other, _ = certificate(tmp_path, "other")
    sync = SynchronizerSettings(sync_method="memory", sync_timeout_s=5, tls_certfile=own, tls_keyfile=key)
    server = make_publisher(TrainerSettings(bucket_mib=1), sync, tmp_path, "cpu")
    announced = announcement(server, 0, server.stage(0, WEIGHTS.items()), "a")
    # Without TLS, and with another authority, nothing is told.
    for cafile, complaint in (("", "did not prove itself"), (str(other), "CERTIFICATE_VERIFY_FAILED")):
        receiver.start(replace(source_of(announced, "a", 5), cafile=cafile))
        assert complaint in settled(receiver).error
        receiver.cancel()
    context = ssl.create_default_context(cafile=own)
    with (
        socket.create_connection(server.address) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as stranger,
    ):
        assert len(stranger.recv(100)) == OPENING_BYTES
        assert (stranger.version() or "") >= "TLSv1.2"
    caplog.clear()
    assert_serves(receiver, announced, own)
    receiver.close()
    server.close()
    assert "was not sent" not in caplog.text


def test_tls_is_for_pulls_and_needs_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, key = certificate(tmp_path, "trainer")
    monkeypatch.setenv("TRINITY_BUS_SYNCHRONIZER__TLS_CERTFILE", str(own))
    with pytest.raises(ConfigError, match="TLS_KEYFILE is not set"):
        Settings()
    monkeypatch.setenv("TRINITY_BUS_SYNCHRONIZER__TLS_KEYFILE", str(key))
    with pytest.raises(ConfigError, match="SYNC_METHOD is nccl, which cannot be encrypted: only memory can"):
        Settings()
    monkeypatch.setenv("TRINITY_BUS_SYNCHRONIZER__SYNC_METHOD", "memory")
    key.write_text("none")
    with pytest.raises(ConfigError, match=r"synchronizer\.tls_certfile or its key cannot be used"):
        make_publisher(TrainerSettings(), Settings().synchronizer, tmp_path, "cpu")


def test_a_version_that_is_larger_than_the_model_is_refused_before_memory_is_taken(publisher: Publisher) -> None:
    announced = announcement(publisher, 0, publisher.stage(0, WEIGHTS.items()), "a")
    receiver = WeightReceiver(limit_bytes=10_000)
    receiver.start(source_of(announced, "a", 5))
    progress = settled(receiver)
    assert "this model takes 10000 at most" in progress.error
    assert not receiver.resources.buffers
    receiver.close()
    publisher.close()


def _listener(publisher: Publisher) -> listener.PeerListener:
    assert isinstance(publisher, WeightServer)
    return publisher._listener


def _newest_of(publisher: Publisher, who: str) -> object:
    """Where the connection of a member comes from that was counted last."""
    known = list(_listener(publisher)._members.get(who, ()))
    return known[-1]._connection.getpeername() if known else None


def test_nobody_else_connects_to_a_link_that_has_met() -> None:
    """gloo listens for as long as a link is open, and keeps a descriptor for each stranger."""
    never = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        ours = stack.enter_context(socket.create_connection(server.getsockname()))
        theirs = stack.enter_context(server.accept()[0])
        trainer, member = (Channel(one, timeout_s=20, cancelled=never) for one in (ours, theirs))
        key = os.urandom(32)
        trainer.secure(key, "trainer")
        member.secure(key, "member")
        before = set(_listening())

        links = [Link(trainer, "gloo", 0), Link(member, "gloo", 1)]
        threads = [threading.Thread(target=link.open) for link in links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [one for inode, one in _listening().items() if inode not in before]
        assert len(found) == 2
        for descriptor in found:
            with socket.socket(fileno=os.dup(descriptor)) as listener:
                address = listener.getsockname()
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.5)
        sent, taken = torch.arange(1000.0), torch.zeros(1000)
        for link, tensor in zip(links, (sent, taken), strict=True):
            link.broadcast(tensor)
        for link in links:
            link.wait(20)
        assert taken.equal(sent)
        for link in links:
            link.close()
