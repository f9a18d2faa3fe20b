"""What the C library does with memory that a process has freed.

glibc keeps blocks of up to 32 MiB for what is allocated next, and gives back what is free at the end of its heap alone.
Activations of micro-batches, each of another size, leave it in pieces: what a trainer holds between two steps grows.
So all that is free is given back behind each step, from within the heap too; within a step it is used again.

Measured with ``benchmarks/memory.py --allocators``, on a shared machine. Peaks against glibc's own: 808 MiB to 820 at
0.3 M parameters, 1,563 to 1,695 at 15 M; at 135 M 2,900 MiB between steps and not growing, where glibc's had 3,435 and
grew. Keeping all that was ever taken, and giving back only blocks of 32 MiB and more, saved at most a fifth of that.
Page faults cost no time that showed. At 0.3 M parameters jemalloc 5.3 had a peak of 820 MiB and tcmalloc 2.10 of 828,
where this had 835: two hundredths. Neither is a dependency: it would have to be there before the interpreter is, and no
package of the Python index has it.
"""

import ctypes


def give_back_memory() -> None:
    # Wherever in the heap it is, where the C library can: musl and macOS cannot.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
