import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from trinity_bus.runtime.memory import FullCollections, collect_young_only, freeze_gc, unfreeze_gc


class Ring:
    """Only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def heap() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_what_is_there_is_passed_over_until_everything_can_be_collected_again() -> None:
    garbage, kept = weakref.ref(Ring()), Ring()
    freeze_gc()
    assert garbage() is None
    seen, later = weakref.ref(kept), weakref.ref(Ring())
    del kept
    gc.collect()
    assert seen() is not None
    assert later() is None
    unfreeze_gc()
    assert seen() is None


def test_circles_are_collected_now_and_then_while_little_is_held() -> None:
    collect_young_only()
    collections = FullCollections(now=0.0)
    ring = Ring()
    gc.collect()
    seen = weakref.ref(ring)
    del ring
    assert not collections.look(599.0, held=0)
    assert not collections.look(600.0, held=100_000)
    assert seen() is not None
    assert collections.look(900.0, held=10)
    assert seen() is None
    assert not collections.look(901.0, held=10)


PROGRAM = """
import ctypes
from trinity_bus.runtime.memory import give_back_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
# Of every two blocks one stays, so that nothing is free at the heap's end.
blocks = [libc.malloc(100_000) for _ in range(2000)]
for block in blocks:
    ctypes.memset(block, 1, 100_000)
for block in blocks[:-1:2]:
    libc.free(block)
before = resident()
give_back_memory()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has it")
def test_pieces_within_the_heap_are_given_back() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert int(ended.stdout) > 80_000_000
