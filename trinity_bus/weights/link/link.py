"""Links: one private two-rank process group between two who have met on a channel; rank 0 sends, rank 1 takes.

One group over all explorers stalls for everyone when one of them dies; a link stalls for its own two alone. Its ends
find each other over their channel (``store``). gloo carries links between hosts' memories, NCCL (``nccl``) from GPU to
GPU: what it carries is copied from pinned memory onto the GPU, and off the other, a part at a time. So no GPU holds
more of a version than what is under way. Links neither encrypt nor authenticate: the bytes are proven by the checksum.

::

    open_link --both sides there--> OPEN --broadcast, wait--> OPEN ... --close--> (gone)
       |                             |
       +--deadline: LinkError        +--peer died, deadline, cancelled: LinkError; only close is left

Failures: gloo often does not notice that its peer was killed, so every wait has a deadline, can be cancelled, and looks
at the channel. The destructor of a group blocks until its pending operations time out, which nothing ends before (torch
2.13), so ``close`` leaves it to a thread of its own, with everything that those operations still read or write.
"""

import contextlib
import ctypes
import logging
import os
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trinity_bus import awake
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.link import nccl

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store, Work

    from trinity_bus.weights.link.store import LinkStore

type Backend = Literal["gloo", "nccl"]

_SLICE = timedelta(milliseconds=50)  # how long a wait may take to notice that it was cancelled
_NCCL_POLL_S = 0.0005
_SO_ATTACH_FILTER = 26
_RETURN = 0x06
_creating = threading.Lock()  # Held while one device is made, by which its listener is told from those of other links
_log = logging.getLogger(__name__)


class Link:
    """An open link. One thread at a time uses it. The group may still use ``store``."""

    def __init__(self, group: Any, rank: Literal[0, 1], backend: Backend, store: "Store | None" = None) -> None:
        self._group = group
        self._rank = rank
        self._store = store
        self._backend = backend
        # What is to be moved, and what of it the group moves: over NCCL a copy on the GPU
        self._in_flight: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        # NCCL begins once the current stream has done all that it was given, which in a trainer is a step's kernels: a
        # piece of 16 MiB took 68 ms behind a busy stream and 0.9 ms on one of its own, on an H100.
        self._stream = contextlib.nullcontext() if backend == "gloo" else _stream()

    @property
    def in_flight(self) -> bool:
        """Whether a broadcast was begun that was not waited for to its end."""
        return bool(self._in_flight)

    def broadcast(self, tensor: "torch.Tensor") -> "Work":
        """Start to move a uint8 tensor in host memory to rank 1. It must stay untouched until ``wait`` returns."""
        from torch._C._distributed_c10d import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        with self._stream:
            moved = tensor if self._backend == "gloo" else tensor.new_empty(tensor.shape, device="cuda")
            self._in_flight.append((tensor, moved))
            if moved is not tensor and self._rank == 0:
                moved.copy_(tensor, non_blocking=True)
        try:
            with self._stream:
                work: Work = self._group.broadcast([moved], options)
        except RuntimeError as error:
            raise LinkError(f"the link broke: {_first_line(error)}") from error
        return work

    def wait(
        self, work: "Work", deadline: float, cancelled: threading.Event, watch: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for the oldest broadcast. ``deadline`` is of ``awake.now``; what ``watch`` raises ends the wait."""
        while not self._done(work):
            watch()
            if awake.now() > deadline:
                raise LinkError("the deadline passed while the other side was silent")
            if cancelled.is_set():
                raise LinkError("the transfer was cancelled")
        tensor, moved = self._in_flight.popleft()
        if moved is not tensor and self._rank == 1:
            with self._stream:
                tensor.copy_(moved)

    def _done(self, work: "Work") -> bool:
        if self._backend == "nccl":
            # Its ``wait`` orders streams and returns at once.
            time.sleep(_NCCL_POLL_S)
            if not work.is_completed():
                return False
        with contextlib.suppress(RuntimeError):
            work.wait(_SLICE)
        # The wait raises when it runs out, too; the broadcast is then as it was, or has been completed just now.
        if not work.is_completed():
            return False
        try:
            work.wait()
        except RuntimeError as error:
            raise LinkError(f"the link broke: {_first_line(error)}") from error
        return True

    def close(self) -> None:
        """Let go of the group without waiting for it."""
        if self._backend == "nccl" and self._group is not None:
            # Unlike gloo, NCCL ends pending operations when told to.
            threading.Thread(target=self._group.abort, name="link-abort", daemon=True).start()
        # In this order: a list gives up its last one first, and the group may still use the store.
        doomed: list[object] = [self._store, self._group, *self._in_flight]
        # Before the thread has them: the last who lets go waits.
        self._group = self._store = None
        self._in_flight.clear()
        leave_to_a_thread(doomed)


def open_link(channel: Channel, rank: Literal[0, 1], *, backend: Backend, timeout_s: float) -> Link:
    """Meet the other side; nothing else may be said on the channel meanwhile. Rank 0 sends, 1 takes.

    ``timeout_s`` limits the meeting, and each broadcast from when it is begun: what cannot be stopped ends then.
    """
    from trinity_bus.weights.link.store import LinkStore

    store = LinkStore(channel, timeout_s)
    timeout = timedelta(seconds=timeout_s)
    group: Any
    listeners: dict[int, int] = {}
    try:
        if backend == "gloo":
            from torch._C._distributed_c10d import ProcessGroupGloo

            # Private, but the only way to choose the interface: the one that leads to the other side.
            options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
            with _creating:
                before = _listening()
                options._devices = [ProcessGroupGloo.create_device(hostname=channel.ends[0])]  # noqa: SLF001
                listeners = {inode: one for inode, one in _listening().items() if inode not in before}
            options._timeout = timeout  # noqa: SLF001
            options._threads = 1  # noqa: SLF001
            group = ProcessGroupGloo(store, rank, 2, options)
        else:
            group = nccl.open_group(store, rank, timeout)
        link = Link(group, rank, backend, store)
        _agree(link, backend, store, channel, timeout_s)
        _close_to_strangers(listeners)
    except RuntimeError as error:
        raise LinkError(f"the other side did not meet this one within {timeout_s:g} s: {_first_line(error)}") from error
    return link


def _agree(link: Link, backend: Backend, store: "LinkStore", channel: Channel, timeout_s: float) -> None:
    # Has all that the group needs the store for done on both sides: the channel is free from then on.
    if backend == "nccl":
        import torch

        # It makes its communicator with the first broadcast.
        first = link.broadcast(torch.zeros(1, dtype=torch.uint8))
        link.wait(first, awake.now() + timeout_s, channel.cancelled)
    store.seal()


def _listening() -> dict[int, int]:
    # The descriptors of this process that listen, by the number of their socket.
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        # Others may be closed meanwhile.
        with contextlib.suppress(OSError):
            socket_ = re.fullmatch(r"socket:\[(\d+)\]", str(entry.readlink()))
            if socket_ is not None:
                with socket.socket(fileno=os.dup(int(entry.name))) as one:
                    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found[int(socket_[1])] = int(entry.name)
    return found


def _close_to_strangers(listeners: Mapping[int, int]) -> None:
    # Has the kernel drop what comes for gloo's listener: the two have met, and nobody else is to come. gloo listens for
    # as long as its group lives, keeps whatever connects, and ends the process when it has no descriptor left.
    if len(listeners) > 1:
        _log.warning("a link's listener is not told from others that were opened with it, and stays open to strangers")
        return
    for inode, descriptor in listeners.items():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
            if os.fstat(one.fileno()).st_ino == inode:
                # One instruction of the classic packet filter: keep no byte of any packet.
                program = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
                one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def leave_to_a_thread(things: list[object]) -> None:
    """Destroy objects in a thread, because their destructors may block for as long as an operation's time limit.

    ``things`` is emptied. The caller keeps no other reference.
    """
    doomed = list(things)
    things.clear()

    def destroy() -> None:
        doomed.clear()

    threading.Thread(target=destroy, name="link-graveyard", daemon=True).start()


def _stream() -> "contextlib.AbstractContextManager[object]":
    import torch

    stream: contextlib.AbstractContextManager[object] = torch.cuda.stream(torch.cuda.Stream(priority=-1))
    return stream


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
