"""Which explorer is asked: the one that has most of the prompt in its cache, unless it is much busier. Pure.

Engines keep the keys and values of what they have computed, block by block from the beginning. What each was asked is
noted here as a digest of every beginning of it, a whole number of blocks long::

    prompt  [block][block][block][..    known of a: 3 blocks, of b: 1     --> a, unless it has too much to do
                                        of nobody, or of all the same     --> the least busy one, in turn

What it works on for others, gateways and the mesh, it tells in its heartbeats.
An explorer has too much to do where it works on ``SLACK`` requests more than the least busy one *and* on ``FACTOR``
times as many: then the least busy one is asked, and has the prefix from then on too. New weights empty an engine's
cache, and what is noted of it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import xxhash

from schemas.groups.vectors import INT32
from trinity_bus.gateway.fleet import ServingExplorer

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
