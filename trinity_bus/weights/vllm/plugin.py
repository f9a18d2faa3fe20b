"""Entry point of vLLM's plugin system; vLLM calls ``register`` in its front end, engine core and worker processes.

It must import lightly and may run several times in one process. A process of vLLM that was started by another one also
gets a watcher here: vLLM's engine core otherwise outlives a front end that was killed, and keeps its memory.
"""

import logging
import multiprocessing
import os
import select
import signal
import threading

_QUIET = "vllm.model_executor.models.utils"
_CAST = "Attempted to load weight %s with dtype"
BACKEND = "trinity"  # of our engine in vLLM's ``WeightTransferConfig``

forked_threads: int | None = None
"""With how many threads a process that is forked from this one computes; None: as its environment says."""
_watching: set[int] = set()


def register() -> None:
    """Make vLLM know our weight-transfer engine, and tie this process to its parent."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # noqa: SLF001 (there is no public way to ask)
        WeightTransferEngineFactory.register_engine(
            BACKEND, "trinity_bus.weights.vllm.engine", "OverlappedWeightTransferEngine"
        )
    logging.getLogger(_QUIET).addFilter(_is_no_cast)
    if multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread():
        # A forked process inherits the descriptor that wakes its parent's event loop: the SIGTERM that ends an engine
        # would also seem to arrive in the process that started it.
        signal.set_wakeup_fd(-1)
        if forked_threads is not None:
            import torch

            torch.set_num_threads(forked_threads)
    die_with_parent()


def _is_no_cast(record: logging.LogRecord) -> bool:
    # A line for each tensor of each version that comes in another type; the explorer says so once.
    return not str(record.msg).startswith(_CAST)


def die_with_parent() -> None:
    """Kill this process as soon as the process that started it through ``multiprocessing`` is gone.

    The kernel's parent-death signal is not used: it fires when the *thread* that forked ends, and engines are started
    from a thread.
    """
    parent = multiprocessing.parent_process()
    if parent is None or os.getpid() in _watching:
        return
    _watching.add(os.getpid())
    threading.Thread(target=_watch, args=(parent.sentinel,), name="watch-parent", daemon=True).start()


def _watch(sentinel: int) -> None:
    # The sentinel is a pipe whose other end only the parent holds: it becomes readable when the parent is gone.
    with select.epoll() as poll:
        poll.register(sentinel, select.EPOLLIN | select.EPOLLHUP)
        while not poll.poll():
            pass
    os.kill(os.getpid(), signal.SIGKILL)
