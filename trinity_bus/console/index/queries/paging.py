"""Lists in pages: a page ends where the number of its last row says, and the next one goes on below it. Pure."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from trinity_bus.console.index.answers import RowPage
from trinity_bus.console.index.questions import PageAsk

_ANY: Final = 1 << 62


def page_values(ask: PageAsk) -> dict[str, int]:
    """Return the values that a query of a page names: ``before``, and ``rows``, one more than are shown."""
    return {"before": _ANY if ask.before is None else ask.before, "rows": ask.rows + 1}


def row_page[R](found: Iterable[tuple[Any, ...]], ask: PageAsk, make: Callable[[tuple[Any, ...]], R]) -> RowPage[R]:
    """Return a page of what such a query finds; the first value of each row is its number."""
    rows = list(found)
    shown = rows[: ask.rows]
    return RowPage([make(row) for row in shown], str(shown[-1][0]) if len(rows) > ask.rows else None)
