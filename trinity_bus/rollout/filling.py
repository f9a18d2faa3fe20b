"""Which calls have filled a run's sandbox, so that an attempt that goes on with the run finds in it what it is told.

::

    the sandbox of an attempt before --all its calls are durable-----------------> kept
                                     '--one is not, or was under way at the end--> emptied: nobody is told of that one
    a call of a completed turn --the sandbox holds it--> nothing is done
                               '--it holds less-------> the call is made again, into it
                               '--it holds other calls-> it is emptied, and all calls up to this are made again
    a call that is new --begin--> noted as under way --made--> noted in the sandbox's place, then durable

So on the machine of the attempt before, nothing that was durable is called again, unless the sandbox holds more than
that; on another, where the sandbox is empty, the calls are made in their order. Of a call whose process died during it,
or before it was durable, the sandbox keeps nothing.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from trinity_bus.rollout.turns import question_of_call
from trinity_bus.sandbox import SandboxPlace

type Made = tuple[str, Mapping[str, Any]]  # a tool's name, and its arguments
_UNDER_WAY: Final = "-"  # noted in the place of the digest of a call that has not ended


class Filling:
    """What a run's calls have made of its sandbox, whose place is emptied here where it holds what is not durable.

    ``durable``: the calls that earlier attempts have completed, by :func:`digest_of`, and how often.
    """

    def __init__(self, place: SandboxPlace, durable: Mapping[str, int]) -> None:
        self._place = place
        self._held = place.calls()
        self._made: list[Made] = []
        self._digests: list[str] = []
        if Counter(self._held) - Counter(durable):
            self._empty()

    def begin(self) -> None:
        self._place.note_calls([*self._digests, _UNDER_WAY])

    def note(self, name: str, arguments: Mapping[str, Any]) -> None:
        self._add(name, arguments)
        self._place.note_calls(self._digests)
        self._held = list(self._digests)

    def missing(self, name: str, arguments: Mapping[str, Any]) -> list[Made]:
        """Return what is to be made, and noted, again, so that the sandbox is as after a call of an earlier attempt."""
        at = len(self._digests)
        if self._held[at : at + 1] == [digest_of(name, arguments)]:
            self._add(name, arguments)
            return []
        again = [(name, arguments)]
        if len(self._held) > at:
            again = [*self._made, *again]
            self._made, self._digests = [], []
            self._empty()
        return again

    def _empty(self) -> None:
        # Whoever finds it half emptied is to begin again.
        self._place.note_calls([_UNDER_WAY])
        self._place.clear()
        self._held = []

    def _add(self, name: str, arguments: Mapping[str, Any]) -> None:
        self._made.append((name, arguments))
        self._digests.append(digest_of(name, arguments))


def digest_of(name: str, arguments: Mapping[str, Any]) -> str:
    # As `RolloutContext.call` has it: arguments by place, and by name.
    return question_of_call(name, [[name, arguments], {}])
