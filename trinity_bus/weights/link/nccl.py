"""Two-rank NCCL groups for links between GPUs: what gloo does by itself, and NCCL must be told.

::

    here/0, here/1 in the store --both there--> communicator (made by the first broadcast) --> OPEN
            |                                                                                    |
            +--the other never comes: RuntimeError by the time limit          its own watchdog thread: late, or the
                                                                              peer died: aborts the communicator

* NCCL waits without a limit for a peer that never comes, so the two meet in the store first, which has one.
* torch watches its groups with a thread. Left to itself, that thread ends the *process* when an operation is late or
  the peer has died; here it shall abort the communicator and nothing else, so that a member's death costs the trainer
  its link alone. The next epoch makes a new group, and with it a new communicator.
* Two ranks on one GPU are refused by NCCL.

Failures: ``RuntimeError``, as torch raises it. No test of this project has run this on a GPU; meeting and the choice of
what the watchdog does are tested without one.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch.distributed import Store

_ON_ERROR: Final = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_ABORT_ONLY: Final = "2"
"""Abort the communicator; torch's default, 3, ends the process."""
_environment = threading.Lock()


def meet(store: "Store", rank: int, timeout: timedelta) -> None:
    """Wait until the other of two ranks is here, too.

    Args:
        store: Both ranks', with a prefix that was never used before.
        rank: 0 or 1.
        timeout: How long to wait.

    Raises:
        RuntimeError: It has not come.
    """
    store.set(f"here/{rank}", "")
    store.wait([f"here/{1 - rank}"], timeout)


@contextlib.contextmanager
def aborting_only() -> Iterator[None]:
    """Have groups that are made within abort their communicator when something goes wrong, not the process."""
    with _environment:
        before = os.environ.get(_ON_ERROR)
        os.environ[_ON_ERROR] = _ABORT_ONLY
        try:
            yield
        finally:
            if before is None:
                del os.environ[_ON_ERROR]
            else:
                os.environ[_ON_ERROR] = before


def open_group(store: "Store", rank: int, timeout: timedelta) -> Any:
    """Return a group of two ranks.

    Args:
        store: As for :func:`meet`.
        rank: 0 or 1.
        timeout: Of the meeting, and of each operation from when it is begun.

    Raises:
        RuntimeError: The other rank has not come, or there is no GPU.
    """
    from torch._C._distributed_c10d import ProcessGroupNCCL

    meet(store, rank, timeout)
    options = ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001 (the class has no public setter)
    with aborting_only():
        return ProcessGroupNCCL(store, rank, 2, options)
