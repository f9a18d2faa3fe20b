"""A connection between a member and its trainer, on which each has proven itself to the other; what they say on it.

::

    CLOSED --meet (member), admit (trainer): both have proven themselves--> OPEN --send, receive, read_into--> OPEN
                  |                                                          |
                  +--late, cancelled, no proof: LinkError, closed            +--late, cancelled, wrong code: LinkError
                  +--another protocol: OtherProtocolError on both sides, closed

Messages are msgspec structs as msgpack; nothing can run code. ``ModelVersion`` carries a secret, new with each
announcement, on a topic that nobody but the mesh can read. A member and a trainer show each other that they know it,
and do not tell it::

    member                                                             trainer
      |<- greeting: TBwt, PROTOCOL; challenge: 32 random bytes ---------|  the same to everybody who connects
      |-- Hello: who, nonce of 32 random bytes, member's proof -------->|  wrong: closed, without a word
      |<- trainer's proof ----------------------------------------------|  wrong: closed
      |              over a link                                        |
      |-- WeightsRequest: version, checksum --------------------------->|
      |<- WeightsAnswer: refused, or manifest --------------------------|
      |-- StoreEntry: how process groups find each other, both ways ----|
      |<- bytes of every bucket in order -------------------------------|
      |                           (the connection is kept, and the link)
      |              by ``memory``                                      |
      |-- WeightsRequest, maybe with the port where I pass it on ------>|
      |<- WeightsAnswer: manifest, hashes of chunks, maybe a source ----|
      |<- chunks; with a source: from there, after a request -----------|
      |-- WeightsRequest: the source has failed me after n chunks ----->|
      |<- WeightsAnswer: another source, or chunks from here -----------|
      |-- WeightsRequest, a report: I have all ------------------------>|

A proof is an HMAC-SHA256, keyed by the secret, over its side's name, the member's name, and both random values: it
holds for one connection and one direction, so what was overheard is worth nothing. Codes of messages are keyed by a key
of the connection, over the direction, the number of the message, and its bytes, so nobody in between can say anything
in another's name; what follows them unframed, the bytes of a version, is proven by its checksum.

Where the protocols of the two sides differ, both close, and each says why. Whoever changes what is said here, or what
it means, so that the other side of before would not understand it, raises ``PROTOCOL``. The greeting and ``Hello`` stay
as they are in all protocols. Every length is looked at before memory is taken. Failures: ``LinkError`` for what the
network, the other side or the time limit does, ``WireError`` for what is too long or no message: whoever gets it closes
the connection. One thread uses a channel.
"""

import contextlib
import errno
import hashlib
import hmac
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from trinity_bus import awake
from trinity_bus.runtime.frames import Dialect
from trinity_bus.weights.errors import LinkError, OtherProtocolError, WireError
from trinity_bus.weights.layout import HASH_BYTES, MAX_CHUNKS, MAX_MANIFEST_BYTES
from trinity_bus.weights.transport import Source

NONCE_BYTES = 32
PROOF_BYTES = 32

type Side = Literal["member", "trainer"]

_DOMAIN = b"trinity-bus weights peer 1"


@dataclass(frozen=True, slots=True)
class Handshake:
    who: str  # ``{trainer_incarnation}/{epoch}/{explorer}``
    challenge: bytes  # the trainer's random bytes
    nonce: bytes  # the member's

    def proof(self, secret: bytes, side: Side) -> bytes:
        return _code(secret, [b"proof", side.encode(), self.who.encode(), self.challenge, self.nonce])

    def key(self, secret: bytes) -> bytes:
        return _code(secret, [b"key", self.who.encode(), self.challenge, self.nonce])


def message_code(key: bytes, sender: Side, number: int, body: bytes) -> bytes:
    """Return the code of a message; ``number`` is how many that side has sent before."""
    return _code(key, [b"message", sender.encode(), number.to_bytes(8), body])


def _code(key: bytes, parts: Iterable[bytes]) -> bytes:
    digest = hmac.new(key, _DOMAIN, hashlib.sha256)
    for part in parts:
        # With its length, so that no two lists of parts are the same bytes.
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()


PROTOCOL: Final = 2
MAX_TEXT = 512
MAX_ANSWER_BYTES = MAX_MANIFEST_BYTES + MAX_CHUNKS * HASH_BYTES + (1 << 16)

type _Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class Hello(msgspec.Struct, frozen=True):
    who: Annotated[str, msgspec.Meta(max_length=1024)]
    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    proof: Annotated[bytes, msgspec.Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
    protocol: Annotated[int, msgspec.Meta(ge=1, le=65535)]  # that the member speaks


class WeightsRequest(msgspec.Struct, frozen=True):
    version: int
    checksum: _Text
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0  # where it passes on what it takes; 0: it does not
    first: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNKS)] = 0  # How many chunks it has: the rest is wanted
    alone: bool = False  # It cannot reach others, and is to be sent the rest by the trainer
    report: bool = False  # nothing is asked for: it has all


class WeightsAnswer(msgspec.Struct, frozen=True):
    refusal: _Text  # why nothing follows; empty where something does
    manifest: bytes = b""  # as JSON; see ``layout``
    # Of all chunks, one after the other. Where there are any, what follows are chunks.
    hashes: Annotated[bytes, msgspec.Meta(max_length=MAX_CHUNKS * HASH_BYTES)] = b""
    # Host and port of another member, which is to be asked for the chunks; unset: they follow here
    holder: tuple[_Text, Annotated[int, msgspec.Meta(ge=1, le=65535)]] | None = None


class StoreEntry(msgspec.Struct, frozen=True):
    key: _Text
    value: bytes


HELLO: Dialect[Hello] = Dialect(Hello, limit=2048, error=WireError)
REQUEST: Dialect[WeightsRequest] = Dialect(WeightsRequest, limit=4096, error=WireError)
ANSWER: Dialect[WeightsAnswer] = Dialect(WeightsAnswer, limit=MAX_ANSWER_BYTES, error=WireError)
ENTRY: Dialect[StoreEntry] = Dialect(StoreEntry, limit=64 << 10, error=WireError)

_LENGTH = struct.Struct(">I")
_GREETING = struct.Struct(">4sH")
_MAGIC = b"TBwt"
OPENING_BYTES = _GREETING.size + NONCE_BYTES  # heard by everybody who connects to a trainer
_SLICE_S = 0.05  # how long a wait may take to notice that it was cancelled
MEETING_S = 10.0  # Until both have proven themselves: the trainer may read the announcement after the member

# Who, whether a secret is the right one, until when (``awake.now``): the secret, or None where there is none
type FindSecret = Callable[[str, Callable[[bytes], bool], float], bytes | None]


def end_on_silence(connection: socket.socket, limit_s: int) -> None:
    """Have the kernel end a connection to a machine that is gone without a word, after so many seconds; OSError."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Asked after half of the time, thrice; and what was sent is to be acknowledged within it.
    for option, value in (
        (socket.TCP_KEEPIDLE, max(1, limit_s // 2)),
        (socket.TCP_KEEPINTVL, max(1, limit_s // 6)),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, limit_s * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Channel:
    """An open connection, which ``meet`` or ``admit`` has made. ``timeout_s``: how long nothing may move."""

    def __init__(self, connection: socket.socket, *, timeout_s: float, cancelled: threading.Event) -> None:
        self._connection = connection
        self.timeout_s = timeout_s
        self.cancelled = cancelled
        self._key = b""
        self._side: Side = "member"
        self._sent = self._received = 0

    def secure(self, key: bytes, side: Side) -> None:
        """From now on, messages carry codes."""
        self._key, self._side = key, side

    def half_for_sending(self) -> "Channel":
        """Return a channel to the same side for another thread, which sends while this one's receives.

        This one must send no more, and the other one must not receive. To close either is to close both.
        """
        half = Channel(self._connection.dup(), timeout_s=self.timeout_s, cancelled=self.cancelled)
        half.secure(self._key, self._side)
        half._sent = self._sent
        return half

    def send(self, body: bytes) -> None:
        code = message_code(self._key, self._side, self._sent, body)
        self._sent += 1
        self.write(_LENGTH.pack(len(body)) + code + body)

    def receive(self, limit: int, deadline: float | None = None) -> bytes:
        """Return the next message, of ``limit`` bytes at most, by ``deadline`` (``awake.now``), however much moves."""
        (length,) = _LENGTH.unpack(self.read(_LENGTH.size, deadline))
        if length > limit:
            raise WireError(f"a message of {length} bytes is over the limit of {limit}")
        code, body = self.read(PROOF_BYTES, deadline), self.read(length, deadline)
        sender: Side = "trainer" if self._side == "member" else "member"
        if not hmac.compare_digest(code, message_code(self._key, sender, self._received, body)):
            raise LinkError("a message is not of the other side: somebody is in between")
        self._received += 1
        return body

    def read(self, count: int, deadline: float | None = None) -> bytes:
        data = bytearray(count)
        self.read_into(memoryview(data), deadline)
        return bytes(data)

    def read_into(self, view: memoryview, deadline: float | None = None) -> None:
        filled = 0
        silent_at = awake.now() + self.timeout_s
        try:
            self._connection.settimeout(_SLICE_S)
            while filled < len(view):
                if self.cancelled.is_set():
                    raise LinkError("the transfer was cancelled")
                try:
                    count = self._connection.recv_into(view[filled:])
                except (TimeoutError, ssl.SSLWantReadError) as error:
                    if error.errno == errno.ETIMEDOUT:
                        # Not this slice: the kernel has given the other machine up.
                        raise LinkError("the other side is not reached any more") from error
                    if awake.now() > (silent_at if deadline is None else min(silent_at, deadline)):
                        raise LinkError("the deadline passed while the other side was silent") from None
                    continue
                if count == 0:
                    raise LinkError("the other side closed the connection")
                filled += count
                silent_at = awake.now() + self.timeout_s
                if deadline is not None and awake.now() > deadline:
                    raise LinkError("the deadline passed while the other side was slow")
        except (OSError, ValueError) as error:
            if isinstance(error, LinkError):
                raise
            raise LinkError(f"the connection broke: {error}") from error

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes with no frame around them, all within the time limit."""
        try:
            self._connection.settimeout(_SLICE_S)
            left, until = memoryview(data).cast("B"), awake.now() + self.timeout_s
            while left:
                try:
                    left = left[self._connection.send(left) :]
                except (TimeoutError, ssl.SSLWantWriteError) as error:
                    if error.errno == errno.ETIMEDOUT or awake.now() > until:
                        raise
        except (OSError, ValueError) as error:
            raise LinkError(f"the connection broke: {error}") from error

    @property
    def ends(self) -> tuple[str, str]:
        try:
            return str(self._connection.getsockname()[0]), str(self._connection.getpeername()[0])
        except OSError as error:
            raise LinkError(f"the connection broke: {error}") from error

    def waits_for_more(self) -> bool:
        """Whether the other side says something more, rather than to close or to be silent for the time limit."""
        more = False

        def has_come(limit_s: float) -> bool:
            nonlocal more
            self._connection.settimeout(max(limit_s, _SLICE_S))
            try:
                more = self._connection.recv(1, socket.MSG_PEEK) != b""
            except TimeoutError as error:
                return error.errno == errno.ETIMEDOUT
            return True

        with contextlib.suppress(OSError, ValueError):
            awake.wait_in_thread(has_come, self.timeout_s)
        return more

    def wait(self) -> None:
        """Wait, however long, until the other side says something, or the connection ends in whatever way."""
        self._poll(select.POLLIN)

    def wait_for_end(self) -> None:
        """Wait, however long, until the connection ends, whatever the other side still says."""
        self._poll(select.POLLRDHUP)

    def notice_silence(self, limit_s: int) -> None:
        """Have a machine that is gone without a word be an end of the connection, after so many seconds."""
        try:
            end_on_silence(self._connection, limit_s)
        except OSError as error:
            raise LinkError(f"the connection broke: {error}") from error

    def _poll(self, event: int) -> None:
        waiting = select.poll()
        # Its descriptor is -1 where this side has closed it.
        with contextlib.suppress(ValueError):
            waiting.register(self._connection, event)
            waiting.poll()

    def is_open(self) -> bool:
        """Whether the other side has not closed it, as far as is known here."""
        try:
            self._connection.settimeout(0)
            return self._connection.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Close it, and wake whoever waits on it. Safe to call twice, from any thread."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._connection.close()


def meet(source: Source, cancelled: threading.Event) -> Channel:
    """Connect to a trainer, as a member; both prove themselves."""
    where = f"{source.host}:{source.port}"
    if not source.secret:
        raise LinkError("the announcement carries no secret: its coordinator is older than this explorer; upgrade it")
    deadline = awake.now() + min(source.timeout_s, MEETING_S)
    try:
        connection = socket.create_connection((source.host, source.port), timeout=source.timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source.cafile:
            context = ssl.create_default_context(cafile=source.cafile)
            connection = context.wrap_socket(connection, server_hostname=source.host)
    except (OSError, ValueError) as error:
        raise LinkError(f"no trainer answers at {where}: {error}") from error
    channel = Channel(connection, timeout_s=source.timeout_s, cancelled=cancelled)
    try:
        _introduce(channel, source, deadline)
    except OtherProtocolError:
        channel.close()
        raise
    except LinkError as error:
        channel.close()
        raise LinkError(f"the trainer at {where} did not prove itself: {error}") from error
    return channel


def _introduce(channel: Channel, source: Source, deadline: float) -> None:
    secret = bytes.fromhex(source.secret)
    magic, protocol = _GREETING.unpack(channel.read(_GREETING.size, deadline))
    if magic != _MAGIC:
        raise LinkError("who answers is no trainer that says which protocol of weights it speaks: upgrade it")
    meeting = Handshake(source.prefix, channel.read(NONCE_BYTES, deadline), os.urandom(NONCE_BYTES))
    body = HELLO.encode(Hello(meeting.who, meeting.nonce, meeting.proof(secret, "member"), PROTOCOL))
    channel.write(_LENGTH.pack(len(body)) + body)
    if protocol != PROTOCOL:
        # Only now, so that the other side can say it as well.
        raise OtherProtocolError(f"who answers at {source.host}:{source.port}", protocol, PROTOCOL)
    if not hmac.compare_digest(channel.read(PROOF_BYTES, deadline), meeting.proof(secret, "trainer")):
        raise LinkError("who answers does not know the secret of the announcement")
    channel.secure(meeting.key(secret), "member")


def admit(channel: Channel, find_secret: FindSecret) -> str:
    """Let a member in that has connected; both prove themselves. Return who it is."""
    deadline = awake.now() + min(channel.timeout_s, MEETING_S)
    challenge = os.urandom(NONCE_BYTES)
    channel.write(_GREETING.pack(_MAGIC, PROTOCOL) + challenge)
    (length,) = _LENGTH.unpack(channel.read(_LENGTH.size, deadline))
    if length > HELLO.limit:
        raise WireError("what connected is no member")
    hello = HELLO.decode(channel.read(length, deadline))
    if hello.protocol != PROTOCOL:
        raise OtherProtocolError(hello.who, hello.protocol, PROTOCOL)
    meeting = Handshake(hello.who, challenge, hello.nonce)
    secret = find_secret(
        hello.who, lambda known: hmac.compare_digest(hello.proof, meeting.proof(known, "member")), deadline
    )
    if secret is None:
        raise LinkError("it does not know the secret of an announcement that names it")
    channel.write(meeting.proof(secret, "trainer"))
    channel.secure(meeting.key(secret), "trainer")
    return hello.who
