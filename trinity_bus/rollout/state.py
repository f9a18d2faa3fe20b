"""What a workflow says of itself while it runs, for whoever looks at the runners.

Small and plain: it goes over a socket and through the log as often as somebody may want to see it.
"""

from collections.abc import Callable
from typing import Any

import msgpack

from schemas.fields.free_form import check_plain

MAX_STATE_BYTES = 4096  # of all values of one run together, as msgpack


class RunState:
    """Named values; each replaces the one of its name.

    Failures: what is not plain data, or makes the whole too large, is refused, and what was there before stays.
    ``on_first`` is called once, when there is something to be taken for the first time.
    """

    def __init__(self, on_first: Callable[[], None] | None = None) -> None:
        self._values: dict[str, Any] = {}
        self._on_first = on_first
        self.changed = False  # there is anything that was not taken

    def set(self, values: dict[str, Any]) -> None:
        """Set some values; ValueError where one is not plain data, or all are larger than ``MAX_STATE_BYTES``."""
        merged = self._values | check_plain(values)
        size = len(msgpack.packb(merged))
        if size > MAX_STATE_BYTES:
            raise ValueError(f"the state of a run would be {size} bytes, at most {MAX_STATE_BYTES} are allowed")
        self._values = merged
        self.changed = True
        if self._on_first is not None:
            on_first, self._on_first = self._on_first, None
            on_first()

    def take(self) -> dict[str, Any]:
        """Return all values; they count as not changed until the next one is set."""
        self.changed = False
        return self._values
