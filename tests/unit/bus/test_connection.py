"""The first connection to a broker: none is left half closed, whatever the other side does."""

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable

import pytest
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed, UnsupportedSaslMechanismError

from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus
from trinity_bus.bus.client import internals
from trinity_bus.bus.client.connection import BriefLog, check_reachable, kafka_errors, wait_reachable
from trinity_bus.bus.client.credentials import LULL_S, REFUSED_S, Refusals, doubtful_settings
from trinity_bus.bus.client.internals import LogClient
from trinity_bus.bus.client.shutdown import close_connection
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError

type Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def answers_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A frame of four bytes, which are not the number of any request."""
    await reader.read(1)
    writer.write(b"\0\0\0\4\xff\xff\xff\xff")
    await reader.read()
    writer.close()


async def hangs_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Which requests it knows: none."""
    _size, _key, _version, number = struct.unpack(">ihhi", await reader.readexactly(12))
    writer.write(struct.pack(">iihi", 10, number, 0, 0))
    await reader.read()
    writer.close()


async def test_a_broker_that_accepts_and_says_nothing_hides_no_other_one() -> None:
    async with (
        await asyncio.start_server(says_nothing, "127.0.0.1", 0) as silent,
        await asyncio.start_server(answers, "127.0.0.1", 0) as other,
    ):
        servers = ",".join(f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in (silent, other))
        async with asyncio.timeout(60):
            await check_reachable(KafkaSettings(bootstrap_servers=servers, request_timeout_s=600.0), "test")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


async def test_who_is_patient_waits_for_a_broker_that_starts_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{port}", outage_s=60.0)
    bus = Bus(kafka, client_id="test", patient=True)
    starting = asyncio.create_task(bus.start())
    await until(lambda: "It is asked again for 60 s" in caplog.text)
    assert not starting.done()
    async with await asyncio.start_server(answers, "127.0.0.1", port), asyncio.timeout(30):
        await starting
    assert caplog.text.count("no Kafka broker can be used") == 1
    await bus.stop()


async def test_who_is_patient_gives_up_in_time() -> None:
    kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}")
    with pytest.raises(BrokerUnreachableError, match="connection refused"):
        await wait_reachable(kafka, "test", 0.5)


async def test_a_client_gives_a_broker_up_that_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "CONNECT_S", 0.1)
    async with await asyncio.start_server(says_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = LogClient(bootstrap_servers=f"127.0.0.1:{port}", request_timeout_ms=600_000)
        connection = AIOKafkaConnection("127.0.0.1", port, request_timeout_ms=600_000)
        with pytest.raises(KafkaConnectionError, match=f"127.0.0.1:{port} did not answer in time"):
            await client.connect(connection)
        await close_connection(connection)


async def test_all_that_a_silent_broker_is_asked_is_broken_off_at_once() -> None:
    closed = []

    class Open:
        def __init__(self, name: str) -> None:
            self._name = name

        def close(self, *, reason: object) -> None:
            assert reason is CloseReason.CONNECTION_TIMEOUT, "that alone has the client ask who leads now"
            closed.append(self._name)

    client = LogClient(bootstrap_servers="127.0.0.1:1")
    client._conns = {(1, "default"): Open("a"), (1, "coordination"): Open("b"), (2, "default"): Open("c")}
    client.break_off(1)
    assert closed == ["a", "b"]
    client.break_off()
    assert closed == ["a", "b", "a", "b", "c"]


@pytest.mark.parametrize("handler", [answers_nonsense, hangs_up, says_nothing])
async def test_a_connection_of_no_use_is_closed(monkeypatch: pytest.MonkeyPatch, handler: Handler) -> None:
    made: list[AIOKafkaConnection] = []

    class Seen(AIOKafkaConnection):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr("trinity_bus.bus.client.connection.AIOKafkaConnection", Seen)

    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{port}", request_timeout_s=0.2)
        with pytest.raises(BrokerUnreachableError, match=f"127.0.0.1:{port}"):
            await check_reachable(kafka, "test")
        (connection,) = made
        assert connection._closed_fut.done()


async def test_who_is_told_to_stop_is_stopped() -> None:
    async def commit() -> None:
        with kafka_errors("commit"):
            await asyncio.Event().wait()

    committing = asyncio.create_task(commit())
    await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing


def test_each_place_speaks_once_in_an_interval() -> None:
    now = [0.0]
    brief = BriefLog(10.0, lambda: now[0])

    def passes(line: int, level: int = logging.ERROR) -> bool:
        return brief.filter(logging.LogRecord("aiokafka", level, "client.py", line, "x", (), None))

    assert [passes(1), passes(1), passes(2)] == [True, False, True]
    assert passes(1, logging.DEBUG), "debugging is not held back"
    now[0] = 9.9
    assert not passes(1)
    now[0] = 10.0
    assert [passes(1), passes(1)] == [True, False]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (None, "in sender"),
        (ConnectionError("closed %s"), "in sender: ConnectionError: closed %s"),
        (ConnectionError("closed 100 %"), "in sender: ConnectionError: closed 100 %"),
    ],
)
def test_an_exception_is_one_line(error: Exception | None, line: str) -> None:
    trace = None if error is None else (ConnectionError, error, None)
    record = logging.LogRecord("aiokafka", logging.ERROR, "sender.py", 1, "in %s", ("sender",), trace)
    assert BriefLog().filter(record)
    assert logging.Formatter("%(message)s").format(record) == line


def test_refusals_count_from_the_first_since_a_client_was_let_in() -> None:
    refusals = Refusals()

    def told(now: float) -> tuple[str | None, str | None]:
        return refusals.last, refusals.given_up(now)

    assert told(1000.0) == (None, None)
    refusals.refused(0.0, "wrong")
    assert told(REFUSED_S / 2) == ("wrong", None)
    refusals.forget()
    assert told(1000.0) == (None, None)
    refusals.refused(1000.0, "wrong")
    refusals.refused(1000.0 + REFUSED_S - 0.1, "wrong again")
    assert told(1000.0 + REFUSED_S) == ("wrong again", None)
    refusals.refused(1000.0 + REFUSED_S, "still wrong")
    assert told(1000.0 + REFUSED_S) == ("still wrong", "still wrong")


def test_a_refusal_that_is_not_repeated_is_none_of_credentials() -> None:
    refusals = Refusals()
    # One of several brokers, which nobody asks any more: connections to the others stand, and no new one is let in.
    refusals.refused(0.0, "wrong")
    assert refusals.given_up(REFUSED_S + 1) is None
    refusals.refused(LULL_S + 1, "wrong, long after")
    assert refusals.given_up(LULL_S + 1) is None
    refusals.refused(LULL_S + 1 + REFUSED_S, "wrong")
    assert refusals.given_up(LULL_S + 1 + REFUSED_S) == "wrong"
    assert refusals.given_up(LULL_S + 1 + REFUSED_S + LULL_S + 1) is None


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (SaslAuthenticationFailed("no"), "SASL_USERNAME, _SASL_PASSWORD and _SASL_MECHANISM"),
        (UnsupportedSaslMechanismError("no"), "is _SASL_MECHANISM"),
        (ssl.SSLCertVerificationError("no"), "SSL_CAFILE and _BOOTSTRAP_SERVERS"),
        (KafkaConnectionError("no"), None),
        (ConnectionResetError("no"), None),
        (TimeoutError("no"), None),
    ],
)
def test_only_a_refusal_of_credentials_names_settings(error: Exception, names: str | None) -> None:
    doubt = doubtful_settings(error)
    if names is None:
        assert doubt is None
    else:
        assert doubt is not None
        assert names in doubt.replace("TRINITY_BUS_KAFKA_", "")
