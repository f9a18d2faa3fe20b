"""A process that was told so keeps the memory that it frees."""

import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys
from trinity_bus.runtime.allocator import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(3)
bytearray(b"1") * (64 << 20)
before = faults()
for _ in range(4):
    bytearray(b"1") * (64 << 20)
print(faults() - before)
"""


def _faults(how: str) -> int:
    run = subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=False)
    if run.returncode == 3:
        pytest.skip("this C library has no mallopt")
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def test_large_buffers_are_used_again_without_page_faults() -> None:
    pages = 4 * (64 << 20) // 4096
    assert _faults("keep") < 0.01 * pages


def test_without_it_the_system_is_asked_for_each_of_them() -> None:
    """Else the test above could not fail; with huge pages a fault brings 512 pages."""
    assert _faults("return") >= 4 * (64 << 20) // (2 << 20)
