"""What the C library does with memory that a process has freed.

glibc keeps blocks of up to 32 MiB for what is allocated next, and gives back what is free at the end of its heap alone.
Activations of micro-batches, each of another size, leave it in pieces: what a trainer holds between two steps grows.
So all that is free is given back behind each step, from within the heap too; within a step it is used again.

Measured with ``benchmarks/memory.py --allocators``, two threads beside other work, peaks of the last steps; the
machine was shared, so seconds and small differences say nothing:

=====================================  ===========================  ============================  ====================
parameters                             0.3 M                        15 M                          135 M
=====================================  ===========================  ============================  ====================
glibc's own                            820 MiB, 1,400 page faults   1,695 MiB, 50,000 page        3,648 MiB and growing,
                                       a step                       faults a step                 3,435 between steps
all is kept that was ever taken        818 MiB, 90                  1,680 MiB, 34,000             not measured alone
blocks of 32 MiB and more are given    819 MiB, 9,500               1,669 MiB, 149,000            not measured alone
back at once, the rest behind steps
all that is free, behind steps: this   808 MiB                      1,563 MiB                     3,641 MiB and not
                                                                                                  growing, 2,900 between
=====================================  ===========================  ============================  ====================

So it is given back behind steps, and from a size on that glibc finds by itself. jemalloc and tcmalloc were not tried:
neither is on the machines that this was measured on.
"""

import ctypes


def give_back_memory() -> None:
    """Give back all that is free, wherever in the heap it is, where the C library can: musl and macOS cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
