"""What members and trainers say to each other about weights: msgspec structs as msgpack; nothing can run code.

``ModelVersion`` carries a secret, new with each announcement, on a topic that nobody but the mesh can read. A member
and a trainer show each other that they know it, and do not tell it::

    member                                                             trainer
      |<- greeting: PROTOCOL; challenge: 32 random bytes ---------------|  the same to everybody who connects
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
of the connection, over the direction, the number of the message, and its bytes.

Where the protocols of the two sides differ, nothing else is said (``channel``). Whoever changes what is said here, or
what it means, so that the other side of before would not understand it, raises the number. The greeting and ``Hello``
stay as they are in all protocols. Every length is looked at before memory is taken. Failures: ``WireError`` for what is
too long or no message; whoever gets it closes the connection.
"""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from trinity_bus.runtime.frames import Dialect
from trinity_bus.weights.errors import WireError
from trinity_bus.weights.layout import HASH_BYTES, MAX_CHUNKS, MAX_MANIFEST_BYTES

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
    manifest: bytes = b""  # as JSON; see ``manifest``
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
