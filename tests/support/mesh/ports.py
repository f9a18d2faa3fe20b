"""Ports for programs that bind them much later than they are chosen."""

import os
from itertools import islice

from trinity_bus.runtime.ports import is_free


def quiet_ports(count: int) -> list[int]:
    """Ports that are free and stay so: below those that the system hands to clients."""
    first = 20_000 + os.getpid() * 10 % 12_000
    return list(islice(filter(is_free, range(first, 32_768)), count))
