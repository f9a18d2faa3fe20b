"""The explorers that can be asked over HTTP, by what their heartbeats say. Pure: told the time, owns nothing.

::

    unknown --heartbeat with a proved address, of this pool--> USABLE --asked, and did not answer--> DOUBTED
                                                                ^  |                                    |
                                                                |  '--draining, left, silent--> gone    |
                                                                '------------the next heartbeat---------'

One that takes new weights (``syncing``) is asked like any other: its engine goes on while they arrive. An address
without its proof (``address_proof``) is passed over, and told once. Whoever comes, or comes again after it was gone,
does so with a number of its own: what was proved before is not believed of it.
"""

import itertools
import logging
from dataclasses import dataclass
from typing import Final

from schemas import ExplorerHeartbeat, ExplorerLeft
from trinity_bus.gateway.address_proof import Presence, is_proved, presence_of

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
