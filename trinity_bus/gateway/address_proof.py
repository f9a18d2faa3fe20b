"""That an explorer answers at an address, shown by whoever knows ``explorer.http_key``. Pure.

Whoever may write ``explorer-events`` can write any heartbeat. What is asked over HTTP, and the key with it, goes only
to an address that came with an HMAC-SHA256 over it, keyed by that key. The proof is of one explorer, one life of it and
one pool: copied, it leads to nobody else. It is on the log for all to read, so the key is to be one that cannot be
guessed.
"""

import hashlib
import hmac

import msgspec

from schemas import ExplorerHeartbeat
from trinity_bus.runtime.secrecy import same_secret

_DOMAIN = "trinity-bus explorer address 1"


def with_proof(beat: ExplorerHeartbeat, key: str) -> ExplorerHeartbeat:
    """Return a heartbeat with the proof of its address."""
    return beat.model_copy(update={"address_proof": _proof(beat, key)})


def is_proved(beat: ExplorerHeartbeat, key: str) -> bool:
    """Whether whoever wrote a heartbeat's address knows the key."""
    return same_secret(beat.address_proof, _proof(beat, key))


def _proof(beat: ExplorerHeartbeat, key: str) -> str:
    said = msgspec.json.encode([_DOMAIN, beat.explorer, beat.incarnation, beat.pool, beat.address])
    return hmac.new(key.encode(), said, hashlib.sha256).hexdigest()
