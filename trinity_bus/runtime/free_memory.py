"""How much memory a process may still take: what the machine has, and what its control group leaves."""

from pathlib import Path

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
