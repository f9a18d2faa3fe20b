"""What an object holds: the items of each collection that can be reached from it, by the way to it. Pure."""

from collections import Counter, deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

COLLECTIONS: Final = (list, tuple, AbstractSet, deque)
OURS: Final = ("trinity_bus", "workers")
"""Packages whose objects are looked into; all others are taken for values."""


def held(roots: Mapping[str, object]) -> dict[str, int]:
    """Return how many items there are in collections, each of which counts once, by the first way to it.

    Args:
        roots: Objects, by the name with which ways begin.

    Returns:
        Way to items: ``machine.ledger.batches`` has the batches, and ``machine.ledger.batches[].results`` those of all
        batches together.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    queue: deque[tuple[str, Any]] = deque(roots.items())
    while queue:
        way, thing = queue.popleft()
        if isinstance(thing, str | bytes | int | float) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Mapping):
            found[way] += len(thing)
            queue.extend((f"{way}[]", value) for value in thing.values())
        elif isinstance(thing, COLLECTIONS):
            found[way] += len(thing)
            queue.extend((f"{way}[]", value) for value in thing)
        elif type(thing).__module__.split(".")[0] in OURS:
            queue.extend((f"{way}.{name}", value) for name, value in _attributes(thing).items())
    return dict(found)


def _attributes(thing: object) -> dict[str, Any]:
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    # Slots of what the standard library made are no attributes of ours, and may be unset.
    found = {name: getattr(thing, name) for name in names if not name.startswith("__") and hasattr(thing, name)}
    return found | getattr(thing, "__dict__", {})
