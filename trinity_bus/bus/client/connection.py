"""How a client reaches the brokers, and how a client library's errors become this project's, and its log is readable.

The first connection is tried here, by hand, because the client library only logs why a broker refused it.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidProducerEpoch,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    ProducerFenced,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aiokafka.helpers import create_ssl_context

from trinity_bus import awake
from trinity_bus.bus.client.credentials import REFUSED_S, Refusals, doubtful_settings
from trinity_bus.bus.client.internals import AIOKafkaConnection, client_of
from trinity_bus.bus.client.shutdown import bounded_shutdown, close_connection, to_the_end
from trinity_bus.config import KafkaSettings, env_name
from trinity_bus.errors import (
    AccessDeniedError,
    BrokerUnreachableError,
    BusError,
    ConfigError,
    CredentialsRefusedError,
    ProducerFencedError,
    RecordGoneError,
    RecordTooLargeError,
    TrinityError,
)

log = logging.getLogger(__name__)

METADATA_S: Final = 60.0  # after which a client asks how many partitions a topic has
_AGAIN_S: Final = 0.2
# what whoever misses a topic is told
HOW_TOPICS_COME = "a service creates it when it starts, or trinity-bus topics create"
_REFUSALS = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)


def bootstrap_servers(settings: KafkaSettings) -> list[str]:
    if settings.bootstrap_servers is None:
        raise ConfigError(
            f"{env_name('kafka.bootstrap_servers')} is not set: give host:port of a broker, "
            "or start the embedded one with `trinity-bus broker start`"
        )
    return settings.bootstrap_servers.split(",")


def client_options(settings: KafkaSettings, client_id: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap_servers(settings),
        "client_id": client_id,
        "request_timeout_ms": round(settings.request_timeout_s * 1000),
        "metadata_max_age_ms": round(METADATA_S * 1000),
        **_security(settings),
    }


def _security(settings: KafkaSettings) -> dict[str, Any]:
    options: dict[str, Any] = {"security_protocol": settings.security_protocol}
    if settings.security_protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(settings)
    if settings.security_protocol.startswith("SASL"):
        options["sasl_mechanism"] = settings.sasl_mechanism
        options["sasl_plain_username"] = settings.sasl_username
        options["sasl_plain_password"] = (
            None if settings.sasl_password is None else settings.sasl_password.get_secret_value()
        )
    return options


def _ssl_context(settings: KafkaSettings) -> ssl.SSLContext:
    try:
        context: ssl.SSLContext = create_ssl_context(
            cafile=settings.ssl_cafile,
            certfile=settings.ssl_certfile,
            keyfile=settings.ssl_keyfile,
            # An empty one keeps OpenSSL from asking the terminal.
            password="" if settings.ssl_password is None else settings.ssl_password.get_secret_value(),
        )
    except (ssl.SSLError, OSError) as error:
        names = [env_name(f"kafka.{name}") for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")]
        raise ConfigError(f"the TLS files cannot be used ({error}): check {', '.join(names)}") from error
    return context


async def check_reachable(settings: KafkaSettings, client_id: str) -> None:
    """Connect, and log in where that is asked for, to each broker until the first lets us.

    BrokerUnreachableError: none does. CredentialsRefusedError: and one refuses the credentials. The message has every
    broker's answer.
    """
    # All at once: one that accepts connections and says nothing must not hide the others.
    security = _security(settings)
    answers: dict[str, str] = {}
    doubts: dict[str, None] = {}
    servers = bootstrap_servers(settings)
    asking = [asyncio.ensure_future(_answer_of(server, settings, client_id, security)) for server in servers]
    try:
        for answer in asyncio.as_completed(asking):
            server, error = await answer
            if error is None:
                return
            answers[server] = _answer(error, settings)
            if (doubt := doubtful_settings(error)) is not None:
                doubts[doubt] = None
    finally:
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
    told = ", ".join(f"{server} ({answers[server]})" for server in servers)
    if doubts:
        raise CredentialsRefusedError(f"no Kafka broker lets this process in at {told}: {' '.join(doubts)}")
    raise BrokerUnreachableError(
        f"no Kafka broker can be used at {told}: is it running, and is {env_name('kafka.bootstrap_servers')} right?"
    )


async def wait_reachable(settings: KafkaSettings, client_id: str, within_s: float) -> None:
    """Connect likewise, and again for ``within_s`` while no broker lets us in, since one may be starting beside us."""
    # One whose credentials are refused is given up after ``REFUSED_S``.
    until = awake.now() + within_s
    refusals = Refusals()
    told: type[BrokerUnreachableError] | None = None
    while True:
        try:
            await check_reachable(settings, client_id)
        except BrokerUnreachableError as error:
            now = awake.now()
            if isinstance(error, CredentialsRefusedError):
                refusals.refused(now, str(error))
            if now + _AGAIN_S > until or refusals.given_up(now) is not None:
                raise
            if told is not type(error):
                again_s = min(within_s, REFUSED_S) if isinstance(error, CredentialsRefusedError) else within_s
                log.warning("%s It is asked again for %g s", error, again_s)
            told = type(error)
            await asyncio.sleep(_AGAIN_S)
        else:
            return


async def _answer_of(
    server: str, settings: KafkaSettings, client_id: str, security: dict[str, Any]
) -> tuple[str, Exception | None]:
    # Which broker was asked, and why it does not let us in; None where it does.
    host, _, port = server.rpartition(":")
    connection = AIOKafkaConnection(
        host.strip("[]"),
        int(port),
        client_id=client_id,
        request_timeout_ms=round(settings.request_timeout_s * 1000),
        **security,
    )
    try:
        await connection.connect()
    except (TimeoutError, OSError, KafkaError) as error:
        return server, error
    finally:
        await close_connection(connection)
    return server, None


def _answer(error: Exception, settings: KafkaSettings) -> str:
    if not isinstance(error, ConnectionResetError | KafkaConnectionError):
        return _reason(error)
    wants = f"does it want another {env_name('kafka.security_protocol')}?"
    if settings.security_protocol.endswith("SSL"):
        wants = f"{wants} Or a certificate, or another one than that of {env_name('kafka.ssl_certfile')}?"
    return f"{_reason(error)}; {wants}"


@asynccontextmanager
async def administrator(settings: KafkaSettings, client_id: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """Within the block, a connected administrator of the client library's."""
    admin = AIOKafkaAdminClient(**client_options(settings, client_id))
    try:
        with kafka_errors("connect"):
            await admin.start()
        yield admin
    finally:
        async with bounded_shutdown(client_of(admin)):
            await to_the_end(admin.close())


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@contextmanager
def kafka_errors(doing: str) -> Iterator[None]:
    """Turn the client library's errors into this project's, with what was being done in front."""
    # All of them: it also raises ``AssertionError`` where it finds itself in another state than it thought, and
    # ``CancelledError`` where it has cancelled something of its own. None is a fault of what was asked for.
    try:
        yield
    except TrinityError:
        raise
    except Exception as error:
        raise translated(error, doing) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise translated(error, doing) from error


def translated(error: BaseException, doing: str) -> BusError:
    text = f"{doing}: {_reason(error)}"
    if isinstance(error, (ProducerFenced, InvalidProducerEpoch)):
        return ProducerFencedError(
            f"{doing}: another process has started with the same transactional id; this one stops"
        )
    if isinstance(error, OffsetOutOfRangeError):
        return RecordGoneError(f"{text}; retention has deleted it, or the topic was created anew")
    if isinstance(error, MessageSizeTooLargeError):
        return RecordTooLargeError(text)
    if isinstance(error, _REFUSALS):
        return AccessDeniedError(f"{text}; `trinity-bus access show` lists what each user of the mesh may do")
    if isinstance(error, KafkaConnectionError | TimeoutError):
        return BrokerUnreachableError(f"{text}; is the broker running?")
    return CredentialsRefusedError(text) if isinstance(error, AuthenticationFailedError) else BusError(text)


class BriefLog(logging.Filter):
    """Keeps the client library's log readable while a broker is away: tens of lines a second, one for each attempt.

    The first line from each place in its code is let through, then one in ten seconds; debug records are not counted.
    An exception is one line: whoever called the client gets it too.
    """

    LOGGERS = ("aiokafka", "aiokafka.cluster", "aiokafka.conn", "aiokafka.producer.sender", "aiokafka.consumer.fetcher")

    def __init__(self, interval_s: float = 10.0, clock: Callable[[], float] = awake.now) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock
        self._next: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if (error := record.exc_info[1] if record.exc_info else None) is not None:
            record.msg, record.args = f"{record.getMessage()}: {type(error).__name__}: {error}", None
            record.exc_info = None
        if record.levelno < logging.INFO:
            return True
        place, now = (record.pathname, record.lineno), self._clock()
        if now < self._next.get(place, now):
            return False
        self._next[place] = now + self._interval_s
        return True


_BRIEF = BriefLog()


def throttle_client_logs() -> None:
    for name in BriefLog.LOGGERS:
        logging.getLogger(name).addFilter(_BRIEF)
