"""Members and trainers of other protocols: both sides say so, and nothing else."""

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tests.support.faults.transfers import announcement, settled
from tests.support.mesh.waiting import wait_until
from trinity_bus.config import SynchronizerSettings, TrainerSettings
from trinity_bus.weights.channel import (
    HELLO,
    NONCE_BYTES,
    OPENING_BYTES,
    PROTOCOL,
    Hello,
    StoreEntry,
    WeightsAnswer,
    WeightsRequest,
)
from trinity_bus.weights.pull import frames
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.transport import source_of
from workers.trainer.engines import Publisher, make_publisher

SAID = {2: "5993a9f7587aebf3"}
"""Digests of the messages of each protocol, without their docstrings. Whoever changes them asks whether the side of
before would understand what is said now; if so, the digest is another, and else there is another number."""
OTHER = PROTOCOL + 6
WEIGHTS = {"w": torch.arange(3000.0)}


@pytest.fixture(params=["nccl", "memory"])
def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Publisher]:
    sync = SynchronizerSettings(sync_method=request.param, sync_timeout_s=30)
    made = make_publisher(TrainerSettings(bucket_mib=1), sync, tmp_path, "cpu")
    yield made
    made.close()


@pytest.mark.parametrize("protocol", [OTHER, PROTOCOL - 1])
def test_a_member_of_another_protocol_hears_the_trainers_and_is_named_in_a_line(
    publisher: Publisher, caplog: pytest.LogCaptureFixture, protocol: int
) -> None:
    said = f"protocol {protocol} "
    announcement(publisher, 0, publisher.stage(0, WEIGHTS.items()), "a")
    body = HELLO.encode(Hello("trainer-life/1/a", os.urandom(32), os.urandom(32), protocol))
    with socket.create_connection(publisher.address, timeout=20) as member:
        opening = member.recv(100)
        assert (len(opening), opening[:6]) == (OPENING_BYTES, b"TBwt" + PROTOCOL.to_bytes(2))
        member.sendall(len(body).to_bytes(4) + body)
        # At once, and long before it would be given up.
        member.settimeout(15)
        assert member.recv(100) == b""
    wait_until(lambda: said in caplog.text)
    (line,) = [record.getMessage() for record in caplog.records if said in record.getMessage()]
    older = "this side" if protocol > PROTOCOL else "trainer-life/1/a"
    assert f"this side protocol {PROTOCOL}: upgrade {older}" in line


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (
            b"TBwt" + OTHER.to_bytes(2),
            f"speaks protocol {OTHER} of weights, and this side protocol {PROTOCOL}: upgrade",
        ),
        # One of before there were numbers begins with a random one.
        (b"\x00" * 6, "is no trainer that says which protocol of weights it speaks"),
    ],
    ids=["newer", "unnumbered"],
)
def test_a_trainer_of_another_protocol_hears_the_members_and_nothing_is_taken(
    publisher: Publisher, greeting: bytes, said: str
) -> None:
    announced = announcement(publisher, 0, publisher.stage(0, WEIGHTS.items()), "a")
    heard: list[int | None] = []

    def be_other() -> None:
        connection, _ = other.accept()
        with connection:
            connection.sendall(greeting + os.urandom(NONCE_BYTES))
            try:
                length = int.from_bytes(connection.recv(4))
                heard.append(HELLO.decode(connection.recv(length)).protocol if length else None)
            except ConnectionResetError:
                heard.append(None)

    receiver = WeightReceiver()
    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = threading.Thread(target=be_other)
        thread.start()
        receiver.start(source_of(announced.model_copy(update={"master_port": other.getsockname()[1]}), "a", 30))
        # At once, and long before it would be given up.
        progress = settled(receiver, 20)
        thread.join()
    assert progress.state == "failed"
    assert said in progress.error
    assert heard == [PROTOCOL if greeting[:4] == b"TBwt" else None]
    # It waits for the upgrade, and then takes the version.
    receiver.cancel()
    receiver.start(source_of(announced, "a", 30))
    assert settled(receiver).state == "ready", receiver.progress
    receiver.close()


def bare(schema: Any) -> Any:
    """Return a JSON schema without descriptions."""
    if isinstance(schema, dict):
        return {key: bare(value) for key, value in schema.items() if key != "description"}
    return [bare(one) for one in schema] if isinstance(schema, list | tuple) else schema


def test_who_changes_what_is_said_asks_whether_the_number_stays() -> None:
    messages = bare(msgspec.json.schema_components([Hello, WeightsRequest, WeightsAnswer, StoreEntry]))
    shown = [msgspec.json.encode(messages, order="sorted"), frames.FRAME.format.encode()]
    assert SAID[PROTOCOL] == hashlib.sha256(b"\n".join(shown)).hexdigest()[:16]
