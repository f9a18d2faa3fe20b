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

So it is given back behind steps, and from a size on that glibc finds by itself.

Of other allocators, loaded first, 0.3 M parameters alone were measured, with the plain engine and all five beside each
other, five steps each:

=====================================  ==================  ===================  =============
allocator                              peak                page faults a step   CPU s a step
=====================================  ==================  ===================  =============
glibc's own                            836 MiB, growing    310                  0.95
all is kept that was ever taken        835 MiB             7,200                0.91
all that is free, behind steps: this   835 MiB, growing    15,200               0.93
jemalloc 5.3                           820 MiB             21,700               0.93
tcmalloc 2.10 (gperftools, minimal)    828 MiB             310                  0.88
=====================================  ==================  ===================  =============

They differ by two hundredths of the peak there, and page faults cost no time that shows. Neither is a dependency: no
package of the Python index has the library, it has to be there before the interpreter is, and Debian's packages
``libjemalloc2`` and ``libtcmalloc-minimal4`` have them. At 15 M and 135 M they were not measured.
"""

import ctypes


def give_back_memory() -> None:
    """Give back all that is free, wherever in the heap it is, where the C library can: musl and macOS cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
