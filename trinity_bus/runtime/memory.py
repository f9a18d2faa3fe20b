"""Memory: how much this process may still take, when the garbage collector looks at it, and what is given back.

A full collection looks at every object, also at the hundreds of thousands that imports have made and that stay for
good: 70 to 90 ms in a coordinator, at moments that nobody chooses. What is there when a service begins to work is taken
out of the collector's sight; what it makes from then on is little, and soon looked at. While modules are imported,
collections find nothing, and take an eighth of the time.

glibc keeps blocks of up to 32 MiB for what is allocated next, and gives back what is free at the end of its heap alone.
Activations of micro-batches, each of another size, leave it in pieces: what a trainer holds between two steps grows.
So all that is free is given back behind each step, from within the heap too; within a step it is used again.

Measured with the loop of ``benchmarks/memory.py``: peaks of 808 MiB to 820 with glibc's own at 0.3 M parameters, 1,563
to 1,695 at 15 M; at 135 M 2,900 MiB between steps and not growing, where glibc's had 3,435 and grew. Keeping all that
was ever taken, or giving back large blocks alone, saved a fifth at most; jemalloc and tcmalloc two hundredths, and
either would have to be there before the interpreter is.
"""

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_GROUP = Path("/sys/fs/cgroup")
_MACHINE = Path("/proc/meminfo")


def total_bytes(group: Path = _GROUP, machine: Path = _MACHINE) -> int | None:
    """Return how much there is, if nothing else were here; None where nobody says."""
    return _least(_of_machine("MemTotal", machine), _limit(group))


def free_bytes(group: Path = _GROUP, machine: Path = _MACHINE) -> int | None:
    """Return it; None where nobody says."""
    # A group's files that were read or written lately count as used, and are given up where memory is wanted. A
    # container sees its own group at ``group``.
    free, limit = _of_machine("MemAvailable", machine), _limit(group)
    if free is None or limit is None:
        return free
    try:
        used = int((group / "memory.current").read_text(encoding="ascii"))
        statistics = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return free
    given_up = next((int(line.split()[1]) for line in statistics if line.startswith("inactive_file ")), 0)
    return _least(free, limit - used + given_up)


def _of_machine(what: str, machine: Path) -> int | None:
    try:
        lines = machine.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{what}:")), None)


def _limit(group: Path) -> int | None:
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if limit == "max" else int(limit)


def _least(one: int | None, other: int | None) -> int | None:
    return min((size for size in (one, other) if size is not None), default=None)


_NEVER: Final = 2**31 - 1
_EVERY_S: Final = 600.0
# what a service may hold for a full collection to take a few milliseconds: some twenty objects belong to each
_MOST_HELD: Final = 1000


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Within the block nothing is collected: what an import makes stays, and each collection looks at all of it."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def freeze_gc() -> None:
    """Collect what the start has left, and have later collections pass over all that is there now."""
    # Call it once, when everything is imported and before the first work. What it covers is still freed when its last
    # reference goes; only circles of it stay, until :func:`unfreeze_gc`.
    gc.collect()
    gc.freeze()


def collect_young_only() -> None:
    """Have no full collection come by itself: for a service that holds very much, with :class:`FullCollections`."""
    # With twenty thousand open tasks each takes a tenth of a second, with a quarter of a million two seconds, and all
    # of them together were a fifth of the coordinator's time while it took them in. They find nothing: what its machine
    # makes for two thousand tasks has 4 objects in circles, what aiokafka makes for 3,000 records in 300 transactions
    # none.
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


class FullCollections:
    """When such a service collects in full: now and then, while it holds little.

    What it holds is freed when its last reference goes, as ever; only circles wait, which lost connections leave.
    """

    def __init__(self, now: float) -> None:
        self._last = now

    def look(self, now: float, held: int) -> bool:
        """Collect if it is time to, and return whether it was; ``held``: how many things make up most of the heap."""
        if now - self._last < _EVERY_S or held > _MOST_HELD:
            return False
        self._last = now
        gc.collect()
        return True


def unfreeze_gc() -> None:
    gc.unfreeze()
    gc.collect()


def give_back_memory() -> None:
    # Wherever in the heap it is, where the C library can: musl and macOS cannot.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
