"""Ports for programs that bind them much later than they are chosen."""

import os
from collections.abc import Iterator
from itertools import islice

from trinity_bus.runtime.ports import is_free

_FIRST, _END = 20_000, 32_768
"""Below the ports that the system hands to clients."""
_APART = 1009
"""Processes whose numbers follow each other begin far from each other: none comes to what another has just chosen."""


def quiet_ports(count: int) -> list[int]:
    """Ports that are free and stay so; each call gives others, for those before may not be bound yet."""
    return list(islice(_FREE, count))


def _free() -> Iterator[int]:
    begin = os.getpid() * _APART % (_END - _FIRST)
    while True:
        for number in range(_END - _FIRST):
            port = _FIRST + (begin + number) % (_END - _FIRST)
            if is_free(port):
                yield port


_FREE = _free()
