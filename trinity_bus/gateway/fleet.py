"""The explorers that can be asked over HTTP, by what their heartbeats say, and which of them is. Pure.

::

    unknown --heartbeat with a proved address, of this pool--> USABLE --asked, and did not answer--> DOUBTED
                                                                ^  |                                    |
                                                                |  '--draining, left, silent--> gone    |
                                                                '------------the next heartbeat---------'

One that takes new weights (``syncing``) is asked like any other: its engine goes on while they arrive. An address
without its proof is passed over, and told once. Whoever comes, or comes again after it was gone,
does so with a number of its own: what was proved before is not believed of it.

Whoever knows ``explorer.http_key`` proves that an explorer answers at an address.

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

The explorer is asked that has most of the prompt in its cache, unless it is much busier. Engines keep the keys and
values of what they have computed, block by block from the beginning. What each was asked is noted here as a digest of
every beginning of it, a whole number of blocks long::

    prompt  [block][block][block][..    known of a: 3 blocks, of b: 1     --> a, unless it has too much to do
                                        of nobody, or of all the same     --> the least busy one, in turn

What it works on for others, gateways and the mesh, it tells in its heartbeats.
An explorer has too much to do where it works on ``SLACK`` requests more than the least busy one *and* on ``FACTOR``
times as many: then the least busy one is asked, and has the prefix from then on too. New weights empty an engine's
cache, and what is noted of it.
"""

import hashlib
import hmac
import itertools
import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import xxhash

from schemas import ExplorerHeartbeat, ExplorerLeft
from schemas.groups.vectors import INT32
from trinity_bus.runtime.secrecy import same_secret

# The number is that of ``chat.wire``, too: who says other things is no explorer to this gateway.
_ADDRESS = "trinity-bus explorer address 4"
_PRESENCE = "trinity-bus explorer presence 4"
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


_log = logging.getLogger(__name__)

_MOST_TOLD: Final = 100  # names of which it is told that they prove nothing


@dataclass(frozen=True, slots=True)
class ServingExplorer:
    presence: Presence
    version: int
    # What it works on that this process has not asked for: attempts at tasks, and requests of others.
    elsewhere: int
    arrival: int = 0  # another one for each time that it came, and wherever it is

    @property
    def name(self) -> str:
        return self.presence.explorer

    @property
    def incarnation(self) -> str:
        return self.presence.incarnation

    @property
    def address(self) -> str:
        """Return ``host:port``."""
        return self.presence.address


class ServingFleet:
    """Those of one pool; explorers of the model that is trained name none. One is gone after a silence."""

    def __init__(self, pool: str, *, model: str, key: str, silence_s: float) -> None:
        self._pool = pool
        self._model = model
        self._key = key
        self._silence_s = silence_s
        self._known: dict[str, tuple[ServingExplorer, float]] = {}
        self._arrivals = itertools.count()
        self._doubted: set[str] = set()
        self._unproved: set[str] = set()

    def heard(self, beat: ExplorerHeartbeat, now: float, *, own: int = 0) -> None:
        """Take a heartbeat into account; ``own`` requests of the explorer's are this process's."""
        if not beat.address or (beat.pool or self._model) != self._pool:
            return
        if not is_proved(beat, self._key):
            self._pass_over(beat)
            return
        if beat.state in ("starting", "draining"):
            self._known.pop(beat.explorer, None)
            return
        self._doubted.discard(beat.explorer)
        presence = presence_of(beat)
        former, until = self._known.get(beat.explorer, (None, now))
        stayed = former is not None and former.presence == presence and now <= until
        arrival = former.arrival if former and stayed else next(self._arrivals)
        elsewhere = len(beat.running) + max(0, beat.http_requests - own)
        explorer = ServingExplorer(presence, beat.model_version, elsewhere, arrival)
        self._known[beat.explorer] = explorer, now + beat.silent_after_s(self._silence_s)

    def _pass_over(self, beat: ExplorerHeartbeat) -> None:
        if beat.explorer not in self._unproved and len(self._unproved) < _MOST_TOLD:
            self._unproved.add(beat.explorer)
            _log.error(
                "nothing is sent to %s, which says to be explorer %s: it has another explorer.http_key than this "
                "process, or is no explorer",
                beat.address,
                beat.explorer,
            )

    def left(self, event: ExplorerLeft) -> None:
        known = self._known.get(event.explorer)
        if known is not None and known[0].presence.incarnation == event.incarnation:
            del self._known[event.explorer]

    def doubt(self, name: str) -> None:
        """Note that one did not answer: it is not asked before it is heard of again."""
        self._doubted.add(name)

    def usable(self, now: float) -> list[ServingExplorer]:
        for name in [name for name, (_, until) in self._known.items() if now > until]:
            del self._known[name]
            self._doubted.discard(name)
        return [self._known[name][0] for name in sorted(self._known) if name not in self._doubted]


BLOCK: Final = 64  # tokens; several of an engine's own blocks
MOST_BLOCKS: Final = 65_536  # noted of one explorer; the least used are forgotten
MOST_EXPLORERS: Final = 1024  # noted; above it, those that cannot be asked now are forgotten
SLACK: Final = 4
FACTOR: Final = 1.5


class Router:
    def __init__(self) -> None:
        self._prefixes: dict[str, OrderedDict[bytes, None]] = {}
        # Of each explorer, the incarnation and version that its prefixes are of.
        self._of: dict[str, tuple[str, int]] = {}
        self._turn = 0

    def choose(
        self, prompt: Sequence[int], explorers: Sequence[ServingExplorer], requests: Mapping[str, int]
    ) -> ServingExplorer | None:
        """Return whom to ask; None where there is nobody. It is noted to have the prompt from now on.

        ``requests`` tells how many each works on for this gateway.
        """
        if not explorers:
            return None
        self._forget(explorers)
        load = {one.name: requests.get(one.name, 0) + one.elsewhere for one in explorers}
        least = min(load.values())
        digests = list(digests_of(prompt))
        fit = [one for one in explorers if load[one.name] <= max(least + SLACK, least * FACTOR)]
        known = {one.name: self._known(one.name, digests) for one in fit}
        best = max(known.values())
        if best:
            fit = [one for one in fit if known[one.name] == best]
        fewest = min(load[one.name] for one in fit)
        fit = [one for one in fit if load[one.name] == fewest]
        self._turn += 1
        chosen = fit[self._turn % len(fit)]
        self._note(chosen.name, digests)
        return chosen

    def _forget(self, explorers: Iterable[ServingExplorer]) -> None:
        for one in explorers:
            if self._of.get(one.name) != (one.incarnation, one.version):
                self._of[one.name] = one.incarnation, one.version
                self._prefixes[one.name] = OrderedDict()
        if len(self._of) > MOST_EXPLORERS:
            for name in self._of.keys() - {one.name for one in explorers}:
                del self._of[name], self._prefixes[name]

    def _known(self, name: str, digests: Sequence[bytes]) -> int:
        """Return how many blocks of a prompt an explorer has, from the beginning on."""
        prefixes = self._prefixes[name]
        return next((i for i, digest in enumerate(digests) if digest not in prefixes), len(digests))

    def _note(self, name: str, digests: Sequence[bytes]) -> None:
        prefixes = self._prefixes[name]
        # The later blocks first, so that they are forgotten first: without its beginning a block is worth nothing.
        for digest in reversed(digests):
            prefixes[digest] = None
            prefixes.move_to_end(digest)
        while len(prefixes) > MOST_BLOCKS:
            prefixes.popitem(last=False)


def digests_of(prompt: Sequence[int]) -> Iterable[bytes]:
    """Return a digest of each beginning of a prompt that is a whole number of blocks long."""
    tokens = np.asarray(prompt, INT32)
    chain = xxhash.xxh3_128()
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        chain.update(tokens[start : start + BLOCK].tobytes())
        yield chain.digest()
