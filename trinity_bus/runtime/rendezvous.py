"""torch's stores, in which ranks and the ends of a link meet. Runners import nothing of it: it is torch's."""

import socket
from datetime import timedelta
from typing import TYPE_CHECKING

from trinity_bus.errors import TrinityError

if TYPE_CHECKING:
    from torch.distributed import TCPStore


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
