"""Addresses and ports of this machine, and torch's stores at them, in which the ranks of a trainer meet."""

import socket
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

from trinity_bus.errors import TrinityError

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether nobody but programs on this machine reaches an address that is listened on."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def free_port() -> int:
    """Return a TCP port that is free now. Whoever binds it must be ready to try another: it may be taken first."""
    with socket.socket() as server:
        server.bind((LOOPBACK, 0))
        port: int = server.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    with socket.socket() as server:
        # As servers do: connections that are closing do not count.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


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
