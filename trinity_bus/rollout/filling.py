"""Which calls have filled a run's sandbox, so that an attempt that goes on with the run makes no call twice.

::

    a call of a completed turn --the sandbox holds it--> nothing is done
                               '--it holds less-------> the call is made again, into it
                               '--it holds other calls-> it is emptied, and all calls up to this are made again
    a call that is new --> made, then noted in the sandbox's place, then durable

So on the machine of the attempt before, nothing that has returned is called again; on another, where the sandbox is
empty, the calls are made in their order. A call during which its process died may have left something behind, there.
"""

from collections.abc import Mapping
from typing import Any

from trinity_bus.rollout.turns import question_of_call
from trinity_bus.sandbox import SandboxPlace

type Made = tuple[str, Mapping[str, Any]]
"""A tool's name, and its arguments."""


class Filling:
    """What a run's calls have made of its sandbox.

    Args:
        place: Of the sandbox.
    """

    def __init__(self, place: SandboxPlace) -> None:
        self._place = place
        self._held = place.calls()
        self._made: list[Made] = []
        self._digests: list[str] = []

    def note(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Note that a call was made."""
        self._add(name, arguments)
        self._place.note_calls(self._digests)
        self._held = list(self._digests)

    def missing(self, name: str, arguments: Mapping[str, Any]) -> list[Made]:
        """Return what is to be made again, in this order, so that the sandbox is as after this call.

        The call is one that an earlier attempt has made; the sandbox may be emptied here, and what is returned is noted
        as it is made.
        """
        at = len(self._digests)
        if self._held[at : at + 1] == [question_of_call(name, arguments)]:
            self._add(name, arguments)
            return []
        again = [(name, arguments)]
        if len(self._held) > at:
            self._place.clear()
            again = [*self._made, *again]
            self._made, self._digests, self._held = [], [], []
        return again

    def _add(self, name: str, arguments: Mapping[str, Any]) -> None:
        self._made.append((name, arguments))
        self._digests.append(question_of_call(name, arguments))
