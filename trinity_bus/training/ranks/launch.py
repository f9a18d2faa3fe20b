"""What a launcher such as ``torchrun`` says of a process that it has started, in its environment. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from trinity_bus.training.errors import ParallelError


@dataclass(frozen=True, slots=True)
class Launch:
    # Rank 0 is the service
    rank: int
    # Processes on all machines
    world_size: int
    # Says which GPU is this process's
    local_rank: int
    # All, where nobody says
    local_world_size: int
    # How often the launcher would start all anew by itself
    restarts: int

    @property
    def spans_machines(self) -> bool:
        return self.local_world_size < self.world_size


def launch_of(environment: Mapping[str, str]) -> Launch | None:
    """None where this process is alone, whoever has started it."""

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
