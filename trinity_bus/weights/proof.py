"""Proving to each other that one has read the announcement: pure functions of what was said.

``ModelVersion`` carries a secret, new with each announcement. Nobody but the mesh can read the topic that it is on. A
member and a trainer show each other that they know it, and do not tell it::

    member                                              trainer
      |<- greeting, challenge: 32 random bytes -----------|   the same to everybody who connects
      |-- who, nonce: 32 random bytes, member's proof --->|   wrong: the connection is closed, without a word
      |<- trainer's proof --------------------------------|   wrong: the connection is closed
      |== messages, each with its code ===================|

A proof is an HMAC-SHA256, keyed by the secret, over its side's name, the member's name, and both random values: it
holds for one connection and one direction, so what was overheard is worth nothing. Codes of messages are keyed by a key
of the connection, over the direction, the number of the message, and its bytes.
"""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

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


def same(one: bytes, other: bytes) -> bool:
    """Compare in a time that does not tell where they differ."""
    return hmac.compare_digest(one, other)


def _code(key: bytes, parts: Iterable[bytes]) -> bytes:
    digest = hmac.new(key, _DOMAIN, hashlib.sha256)
    for part in parts:
        # With its length, so that no two lists of parts are the same bytes.
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()
