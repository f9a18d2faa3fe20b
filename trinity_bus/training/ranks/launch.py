"""What a launcher such as ``torchrun`` says of a process that it has started, and the store in which ranks meet."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from trinity_bus.errors import TrinityError
from trinity_bus.training.errors import ParallelError

if TYPE_CHECKING:
    from torch.distributed import TCPStore


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


class RendezvousError(TrinityError, ConnectionError):
    """A store cannot listen, or nobody answers where it should be."""


def serve_store(host: str, *, timeout_s: float) -> "TCPStore":
    """Open a store for whoever reaches ``host``, on a free port of it and on no other interface.

    ``timeout_s`` limits each operation on it. RendezvousError: nothing can listen there.
    """
    from torch.distributed import TCPStore

    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        # Left to itself, the store listens on every interface.
        listener.bind((host, 0))
        listener.listen(512)
    except OSError as error:
        raise RendezvousError(f"cannot listen on {host!r}: {error}") from error
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def join_store(host: str, port: int, *, timeout_s: float) -> "TCPStore":
    """Connect to the store of another rank. Raises RendezvousError."""
    from torch.distributed import TCPStore

    try:
        # A store that is not there is tried again and again, for up to twice the limit; a socket is refused at once.
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        raise RendezvousError(f"no rendezvous store answers at {host}:{port}: {error}") from error
    try:
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        raise RendezvousError(f"no rendezvous store answers at {host}:{port} within {timeout_s:g} s") from error
