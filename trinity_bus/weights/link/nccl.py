"""Two-rank NCCL groups for links between GPUs: what gloo does by itself, and NCCL must be told.

::

    here/0, here/1 in the store --both there--> communicator (made by the first broadcast) --> OPEN --abort--> (gone)
            |                                       |
            +--the other never comes: RuntimeError--+--it dies on the way: RuntimeError by the time limit

* NCCL waits without a limit for a peer that never comes, so the two meet in the store first, which has one. A
  communicator that *blocks* while it is made holds its thread for good when the peer dies meanwhile; one that does not
  is given up by a limit (both seen on an H100).
* torch watches its groups with a thread that ends the whole *process* minutes after a late operation (seen on an H100).
  A group that is made with blocking waits has no such thread. ``Link`` looks at each operation itself and aborts the
  communicator, so that a member's death costs the trainer its link alone.
* Two ranks on one GPU are refused by NCCL, within a second.
* A receive that waits is a kernel that runs: it gets few of the GPU's multiprocessors.

Failures: ``RuntimeError``, as torch raises it.
"""

import contextlib
import math
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch.distributed import Store

_BLOCKING_WAIT: Final = "TORCH_NCCL_BLOCKING_WAIT"
# Seconds, for communicators that do not block while they are made; torch reads it once for the whole process
_MAKING_LIMIT: Final = "TORCH_NCCL_NONBLOCKING_TIMEOUT"
_MOST_BLOCKS: Final = 4  # multiprocessors of an H100, of 132
_environment = threading.Lock()


def meet(store: "Store", rank: int, timeout: timedelta) -> None:
    """Wait until the other of two ranks is here; ``store`` has a prefix that was never used before."""
    store.set(f"here/{rank}", "")
    store.wait([f"here/{1 - rank}"], timeout)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Have groups that are made within no thread of torch's that ends the process."""
    with _environment:
        before = os.environ.get(_BLOCKING_WAIT)
        os.environ[_BLOCKING_WAIT] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_BLOCKING_WAIT]
            else:
                os.environ[_BLOCKING_WAIT] = before


def open_group(store: "Store", rank: int, timeout: timedelta) -> Any:
    """Return a group of two ranks; ``timeout`` is of the meeting, and of each operation from when it is begun."""
    from torch._C._distributed_c10d import ProcessGroupNCCL

    meet(store, rank, timeout)
    options = ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001 (the class has no public setter)
    options.is_high_priority_stream = True
    options.config.blocking = 0
    options.config.max_ctas = _MOST_BLOCKS
    os.environ.setdefault(_MAKING_LIMIT, str(math.ceil(timeout.total_seconds())))
    with unwatched():
        return ProcessGroupNCCL(store, rank, 2, options)
