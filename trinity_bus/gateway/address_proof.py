"""That an explorer answers at an address, shown by whoever knows ``explorer.http_key``. Pure.

::

    heartbeat with a proof of its address --> believed to have been there
        asked for the first time --> GET /proof?nonce=... --> its answer is right --> it gets requests, and the key
                                                          '-> none, or wrong      --> nothing is sent there

Whoever may write ``explorer-events`` can write any heartbeat. So an address comes with an HMAC-SHA256 over it, keyed by
that key, of one explorer, one incarnation of it and one pool: copied, it leads to nobody else. It is on the log for all
to read, so the key is to be one that cannot be guessed; and an old heartbeat can be written again when its address is
somebody else's. So who is asked there, for the first time since they came and every ten seconds from then on, has to
prove that they know the key, and are that incarnation at that address, over a random value that was never used before:
what is passed on to the true explorer comes back with the address of that one, and what was said once is worth nothing.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

import msgspec

from schemas import ExplorerHeartbeat
from trinity_bus.runtime.secrecy import same_secret

# The number is that of ``chat.wire``, too: who says other things is no explorer to this gateway.
_ADDRESS = "trinity-bus explorer address 3"
_PRESENCE = "trinity-bus explorer presence 3"
_NONCE: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Presence:
    explorer: str
    incarnation: str
    pool: str | None
    address: str

    def answer(self, nonce: str, key: str) -> str:
        """Return what proves to whoever has sent a nonce that it is there now; ValueError where that is no nonce."""
        if _NONCE.fullmatch(nonce) is None:
            raise ValueError("a nonce has 32 hexadecimal digits")
        return _code([_PRESENCE, self.explorer, self.incarnation, self.pool, self.address, nonce], key)

    def is_proved(self, answer: str, nonce: str, key: str) -> bool:
        return same_secret(answer, self.answer(nonce, key))


def presence_of(beat: ExplorerHeartbeat) -> Presence:
    return Presence(beat.explorer, beat.incarnation, beat.pool, beat.address)


def with_proof(beat: ExplorerHeartbeat, key: str) -> ExplorerHeartbeat:
    return beat.model_copy(update={"address_proof": _proof(beat, key)})


def is_proved(beat: ExplorerHeartbeat, key: str) -> bool:
    """Whether whoever wrote a heartbeat's address knows the key."""
    return same_secret(beat.address_proof, _proof(beat, key))


def _proof(beat: ExplorerHeartbeat, key: str) -> str:
    return _code([_ADDRESS, beat.explorer, beat.incarnation, beat.pool, beat.address], key)


def _code(said: list[str | None], key: str) -> str:
    return hmac.new(key.encode(), msgspec.json.encode(said), hashlib.sha256).hexdigest()
