"""Asks a Kafka broker whether it serves, without a Kafka client: one Metadata request on a plain connection."""

import socket
import struct

from trinity_bus.runtime.ports import LOOPBACK

_METADATA = 3
_VERSION = 4
"""The oldest whose answer has all that is needed here; brokers of the last ten years know it."""
_MAX_ANSWER = 1 << 20


def live_brokers(port: int, *, timeout_s: float = 1.0) -> int:
    """How many brokers of its cluster the broker on this port calls alive.

    A broker opens its port a moment before the controller lets it serve: until then the answer is 0.

    Raises:
        OSError: Nothing answers, or it is no Kafka broker.
    """
    client_id = b"trinity-bus"
    body = struct.pack(">hhih", _METADATA, _VERSION, 1, len(client_id)) + client_id
    # No topics, and none to be created.
    body += struct.pack(">ib", 0, 0)
    with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        if not 12 <= size <= _MAX_ANSWER:
            raise OSError(f"what listens on port {port} is no Kafka broker")
        _correlation, _throttle, brokers = struct.unpack(">iii", _receive(connection, size)[:12])
        return int(brokers)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionResetError("the connection was closed within an answer")
        received += chunk
    return bytes(received)
