import subprocess
import sys

import pytest

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
