"""Asks a Kafka broker whether it serves, without a Kafka client: one Metadata request on a plain connection."""

import socket
import struct
from dataclasses import dataclass

from trinity_bus.runtime.ports import LOOPBACK

_METADATA = 3
_VERSION = 4  # the oldest whose answer has all that is needed here; brokers of the last ten years know it
_MAX_ANSWER = 1 << 20


@dataclass(frozen=True, slots=True)
class Cluster:
    # How many are alive. A broker opens its port a moment before the controller lets it serve: then there is none.
    brokers: int
    id: str | None  # as it was given when its first node was formatted


def ask(port: int, *, timeout_s: float = 1.0) -> Cluster:
    """Ask the broker on this port of the loopback interface; OSError where no Kafka broker answers."""
    client_id = b"trinity-bus"
    body = struct.pack(">hhih", _METADATA, _VERSION, 1, len(client_id)) + client_id
    # No topics, and none to be created.
    body += struct.pack(">ib", 0, 0)
    with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        if not 0 <= size <= _MAX_ANSWER:
            raise _no_broker(port)
        answer = _receive(connection, size)
    try:
        return _parse(answer)
    except (struct.error, UnicodeDecodeError) as error:
        raise _no_broker(port) from error


def _parse(answer: bytes) -> Cluster:
    # Metadata response, version 4: correlation id, throttle time, brokers (id, host, port, rack), cluster id, ...
    _correlation, _throttle, brokers = struct.unpack_from(">iii", answer)
    at = 12
    for _ in range(brokers):
        _host, at = _string(answer, at + 4)
        _rack, at = _string(answer, at + 4)
    cluster_id, _ = _string(answer, at)
    return Cluster(brokers, cluster_id)


def _string(answer: bytes, at: int) -> tuple[str | None, int]:
    (size,) = struct.unpack_from(">h", answer, at)
    if size < 0:
        return None, at + 2
    (content,) = struct.unpack_from(f"{size}s", answer, at + 2)
    return content.decode(), at + 2 + size


def _no_broker(port: int) -> OSError:
    return OSError(f"what listens on port {port} is no Kafka broker")


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionResetError("the connection was closed within an answer")
        received += chunk
    return bytes(received)
