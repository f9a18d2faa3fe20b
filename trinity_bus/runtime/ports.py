"""Addresses and ports of this machine."""

import socket
from ipaddress import ip_address

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
