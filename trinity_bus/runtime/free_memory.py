"""How much memory a process may still take: what the machine has, and what its control group leaves."""

from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


def free_bytes(group: Path = _GROUP, machine: Path = Path("/proc/meminfo")) -> int | None:
    """Return it; None where nobody says.

    A group's files that were read or written lately count as used, and are given up where memory is wanted.

    Args:
        group: Of this process: a container sees its own there.
        machine: What the kernel says of all.
    """
    try:
        lines = machine.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
    try:
        limit, used = ((group / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        statistics = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return free
    if limit == "max":
        return free
    given_up = next((int(line.split()[1]) for line in statistics if line.startswith("inactive_file ")), 0)
    left = int(limit) - int(used) + given_up
    return left if free is None else min(free, left)
