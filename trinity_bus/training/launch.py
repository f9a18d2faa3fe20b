"""What a launcher such as ``torchrun`` says of a process that it has started. Pure.

A launcher on each machine starts as many equal processes as it is told, meets the other machines' launchers, and tells
each process who it is by variables of its environment; see :class:`Launch`. One process alone is not launched, whoever
has started it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trinity_bus.training.errors import ParallelError


@dataclass(frozen=True, slots=True)
class Launch:
    """Who this process is among those that a launcher has started together."""

    rank: int
    """Of this process: ``RANK``. Rank 0 is the service."""
    world_size: int
    """Processes on all machines: ``WORLD_SIZE``."""
    local_rank: int
    """Among those on this machine, which says which GPU is this process's: ``LOCAL_RANK``."""
    local_world_size: int
    """Processes on this machine: ``LOCAL_WORLD_SIZE``; all, where nobody says."""
    restarts: int
    """How often the launcher would start all anew by itself: ``TORCHELASTIC_MAX_RESTARTS``."""

    @property
    def spans_machines(self) -> bool:
        """Whether some of the processes are on another machine."""
        return self.local_world_size < self.world_size


def launch_of(environment: Mapping[str, str]) -> Launch | None:
    """Return what a launcher says; None where this process is alone.

    Raises:
        ParallelError: A variable is no number, or the rank is not of the world.
    """

    def number(name: str, default: int) -> int:
        value = environment.get(name, str(default))
        if not value.isdecimal():
            raise ParallelError(f"{name}={value!r}: expected a number, as a launcher such as torchrun sets it")
        return int(value)

    world_size = number("WORLD_SIZE", 1)
    if world_size == 1:
        return None
    launch = Launch(
        rank=number("RANK", 0),
        world_size=world_size,
        local_rank=number("LOCAL_RANK", 0),
        local_world_size=number("LOCAL_WORLD_SIZE", world_size),
        restarts=number("TORCHELASTIC_MAX_RESTARTS", 0),
    )
    if launch.rank >= world_size:
        raise ParallelError(f"RANK={launch.rank} with WORLD_SIZE={world_size}: ranks lie below it")
    return launch
