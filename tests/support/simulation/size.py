"""How much a machine holds: items in all collections that can be reached from it."""

from collections import deque
from typing import Any

from trinity_bus.coordination.dispatch.fleet import ZOMBIES_KEPT
from trinity_bus.coordination.state.memory import Averages, Memory, Window
from trinity_bus.coordination.state.store import StateStore

REMEMBERED = (Window, Memory, Averages)  # what is known of the past; each has a capacity of its own

EMPTY_HOUSE = 128 + 4 * ZOMBIES_KEPT
"""Most items in all collections of a machine that has nothing to do, besides what it remembers of the past."""
ITEMS_PER_BATCH = 17
ITEMS_PER_TASK = 37


def size_of(root: object) -> int:
    """Items in all lists, maps and sets below an object, each collection once; not those of windows of the past."""
    seen: set[int] = set()
    queue: deque[Any] = deque([root])
    items = 0
    while queue:
        thing = queue.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            items += len(thing)
            queue.extend(thing.values())
        elif isinstance(thing, list | tuple | set | frozenset | deque):
            items += len(thing)
            queue.extend(thing)
        elif not isinstance(thing, REMEMBERED) and type(thing).__module__.startswith("trinity_bus.coordination"):
            queue.extend(_attributes(thing))
    return items


def _attributes(thing: object) -> list[Any]:
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    found = {name: getattr(thing, name) for name in names if hasattr(thing, name)}
    found |= getattr(thing, "__dict__", {})
    if isinstance(thing, StateStore):
        # A register of tables, each of which is part of something else too.
        del found["kinds"]
    return list(found.values())
