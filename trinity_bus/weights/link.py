"""One end of a link: a private process group of two, that carries whole versions; rank 0 sends, rank 1 takes.

One group over all explorers stalls for everyone when one of them dies; a link stalls for its own two alone. Its ends
find each other over their channel (``link_store``). gloo carries links between hosts' memories, NCCL from GPU to GPU:
what it carries is copied from pinned memory onto the GPU, and off the other, a part at a time. So no GPU holds more of
a version than what is under way. Links neither encrypt nor authenticate: the bytes are proven by the checksum.

::

    CLOSED --first version: both ends meet over the channel--> OPEN --next version--> OPEN ... --close--> CLOSED
       |                                                        |
       +--deadline: LinkError                                   +--peer died, deadline, cancelled: LinkError

Failures: gloo often does not notice that its peer was killed, so every wait has a deadline, can be cancelled, and looks
at the channel, which ends. A broadcast that is under way cannot be stopped: it may read or write its buffer until it
runs out (torch 2.13), and the destructor of a group blocks until then. So buffers with broadcasts under way are given
up with their link (``still_uses``), and ``close`` leaves all of it to a thread of its own.

What gloo does by itself, NCCL must be told:

* It waits without a limit for a peer that never comes, so the two meet in the store first, which has one. A
  communicator that *blocks* while it is made holds its thread for good when the peer dies meanwhile; one that does not
  is given up by a limit (both seen on an H100).
* torch watches its groups with a thread that ends the whole *process* minutes after a late operation (seen on an H100).
  A group that is made with blocking waits has no such thread. A link looks at each operation itself and aborts the
  communicator, so that a member's death costs the trainer its link alone.
* Two ranks on one GPU are refused by NCCL, within a second.
* A receive that waits is a kernel that runs: it gets few of the GPU's multiprocessors.
"""

import contextlib
import ctypes
import logging
import math
import os
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from trinity_bus import awake
from trinity_bus.runtime.device import uses_gpu
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError, WeightTransferError

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store, Work

    from trinity_bus.weights.staging import FileBucket

type Backend = Literal["gloo", "nccl"]
type Rank = Literal[0, 1]

_PART: Final = 64 << 20  # bytes that are moved at once
_PARTS: Final = 2  # Under way: one is copied off or onto a GPU while the other is on the wire
_MEETING_S: Final = 10.0  # At least: a machine that has much else to do needs its time
_SLICE: Final = timedelta(milliseconds=50)  # how long a wait may take to notice that it was cancelled
_NCCL_POLL_S: Final = 0.0005
_BLOCKING_WAIT: Final = "TORCH_NCCL_BLOCKING_WAIT"
# Seconds, for communicators that do not block while they are made; torch reads it once for the whole process
_MAKING_LIMIT: Final = "TORCH_NCCL_NONBLOCKING_TIMEOUT"
_MOST_BLOCKS: Final = 4  # multiprocessors of an H100, of 132
_SO_ATTACH_FILTER: Final = 26
_RETURN: Final = 0x06
# Held while a group is made: by the environment, and by which listener is one device's and none of other links'.
_creating = threading.Lock()
_log = logging.getLogger(__name__)


class Link:
    """One thread uses it. ``gpu``: over which NCCL sends; by default its own."""

    def __init__(self, channel: Channel, backend: Backend, rank: Rank, gpu: "torch.device | None" = None) -> None:
        self._channel = channel
        self._backend: Backend = backend
        self._rank: Rank = rank
        self._gpu = gpu_of(backend, gpu)
        self._group: Any = None
        self._store: Store | None = None
        self._begun: deque[Work] = deque()
        # What is to be moved, and what of it the group moves: over NCCL a copy on the GPU
        self._in_flight: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        self._stream: contextlib.AbstractContextManager[object] = contextlib.nullcontext()

    @property
    def still_uses(self) -> bool:
        """Whether something that cannot be stopped may still read or write what was to be moved."""
        return bool(self._in_flight)

    def open(self) -> None:
        """Meet the other end, unless that was done. Nothing else may be said on the channel meanwhile."""
        if self._gpu is not None:
            import torch

            # Each thread begins with the machine's first one.
            torch.cuda.set_device(self._gpu)
        if self._group is not None:
            return
        from trinity_bus.weights.link_store import LinkStore

        # Of the meeting, and of each broadcast from when it is begun: what cannot be stopped ends then.
        limit_s = max(self._channel.timeout_s, _MEETING_S)
        timeout = timedelta(seconds=limit_s)
        store = self._store = LinkStore(self._channel, limit_s)
        listeners: dict[int, int] = {}
        try:
            if self._backend == "gloo":
                self._group, listeners = gloo_group(store, self._rank, timeout, self._channel.ends[0])
            else:
                self.use(nccl_group(store, self._rank, timeout), limit_s)
            # All that the group needs the store for is done on both sides: the channel is free from then on.
            store.seal()
            _close_to_strangers(listeners)
        except RuntimeError as error:
            raise LinkError(
                f"the other side did not meet this one within {limit_s:g} s: {_first_line(error)}"
            ) from error

    def use(self, group: Any, limit_s: float) -> None:
        """Move over this group of NCCL's, which makes its communicator with the first broadcast."""
        import torch

        # NCCL begins once the current stream has done all that it was given, which in a trainer is a step's kernels: a
        # piece of 16 MiB took 68 ms behind a busy stream and 0.9 ms on one of its own, on an H100.
        self._group, self._stream = group, torch.cuda.stream(torch.cuda.Stream(priority=-1))
        self.broadcast(torch.zeros(1, dtype=torch.uint8))
        self.wait(limit_s)

    def move(self, buffers: "Sequence[torch.Tensor | FileBucket]", moved: Callable[[int], None]) -> None:
        """Send or receive buffers one after the other, cut alike at both ends; ``moved`` is given each one's index."""
        self.open()
        ends: deque[int | None] = deque()

        def wait() -> None:
            self.wait(self._channel.timeout_s)
            if (whole := ends.popleft()) is not None:
                moved(whole)

        for i, buffer in enumerate(buffers):
            for start in range(0, len(buffer), _PART):
                if len(ends) == _PARTS:
                    wait()
                self.broadcast(buffer[start : start + _PART])
                ends.append(i if start + _PART >= len(buffer) else None)
        while ends:
            wait()

    def broadcast(self, tensor: "torch.Tensor") -> None:
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
                self._begun.append(self._group.broadcast([moved], options))
            except RuntimeError as error:
                raise LinkError(f"the link broke: {_first_line(error)}") from error

    def wait(self, limit_s: float) -> None:
        """Wait for the oldest broadcast. LinkError: it broke, is late or cancelled, or the other side is gone."""
        deadline = awake.now() + limit_s
        while not self._done(self._begun[0]):
            if not self._channel.is_open():
                raise LinkError("the other side is gone")
            if awake.now() > deadline:
                raise LinkError("the deadline passed while the other side was silent")
            if self._channel.cancelled.is_set():
                raise LinkError("the transfer was cancelled")
        self._begun.popleft()
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
        """Let go of the group, without waiting for it; not of the channel."""
        if self._backend == "nccl" and self._group is not None:
            # Unlike gloo, NCCL ends pending operations when told to.
            threading.Thread(target=self._group.abort, name="link-abort", daemon=True).start()
        # In this order: a list gives up its last one first, and the group may still use the store.
        doomed: list[object] = [self._store, self._group, *self._begun, *self._in_flight]
        self._group = self._store = None
        self._begun.clear()
        self._in_flight.clear()
        # The last who lets go waits, for as long as an operation's time limit.
        threading.Thread(target=doomed.clear, name="link-graveyard", daemon=True).start()


def gpu_of(backend: Backend, device: "torch.device | None") -> "torch.device | None":
    """Return what a link needs a GPU for: none for gloo. WeightTransferError: nccl, and there is none."""
    if backend == "gloo":
        return None
    import torch

    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if uses_gpu() else torch.device("cpu")
    if device.type != "cuda":
        raise WeightTransferError(
            f"nccl carries versions from GPU to GPU, and here they would lie on {device.type}: "
            "set synchronizer.sync_method to memory"
        )
    return device


def nccl_group(store: "Store", rank: int, timeout: timedelta) -> Any:
    """Return a group of two ranks; RuntimeError as torch raises it."""
    from torch._C._distributed_c10d import ProcessGroupNCCL

    _meet(store, rank, timeout)
    options = ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001 (the class has no public setter)
    options.is_high_priority_stream = True
    options.config.blocking = 0
    options.config.max_ctas = _MOST_BLOCKS
    os.environ.setdefault(_MAKING_LIMIT, str(math.ceil(timeout.total_seconds())))
    with unwatched():
        return ProcessGroupNCCL(store, rank, 2, options)


def _meet(store: "Store", rank: int, timeout: timedelta) -> None:
    store.set(f"here/{rank}", "")
    store.wait([f"here/{1 - rank}"], timeout)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Have groups that are made within no thread of torch's that ends the process."""
    with _creating:
        before = os.environ.get(_BLOCKING_WAIT)
        os.environ[_BLOCKING_WAIT] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_BLOCKING_WAIT]
            else:
                os.environ[_BLOCKING_WAIT] = before


def gloo_group(store: "Store", rank: int, timeout: timedelta, host: str) -> tuple[Any, dict[int, int]]:
    """Return a group of two ranks on the interface of ``host``, and its listeners, by the numbers of their sockets."""
    from torch._C._distributed_c10d import ProcessGroupGloo

    # Private, but the only way to choose the interface: the one that leads to the other side.
    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
    with _creating:
        before = _listening()
        options._devices = [ProcessGroupGloo.create_device(hostname=host)]  # noqa: SLF001
        listeners = {inode: one for inode, one in _listening().items() if inode not in before}
    options._timeout = timeout  # noqa: SLF001
    options._threads = 1  # noqa: SLF001
    return ProcessGroupGloo(store, rank, 2, options), listeners


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


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
