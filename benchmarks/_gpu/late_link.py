"""One end of a link over NCCL, on one GPU: a broadcast beside a busy GPU, and a late one that must cost the link alone.

torch's watchdog would end the process after minutes; its limits are seconds here. The group is this process's alone,
for NCCL takes no two ranks on one GPU; all else is as links make it.
"""

import argparse
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from benchmarks._gpu.figures import Figures
from trinity_bus.weights import link as links
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.link import Link

PIECE = 16 << 20
CYCLES_A_SECOND = 1.7e9
"""Of an H100, about."""
WATCHDOG_S = 16.0
"""In which it would have ended the process: two of its limits, and a dump."""


OTHER_ENDS: list[socket.socket] = []
"""Of connections that stay open."""


def alone() -> Link:
    """Return a link with one end."""
    from torch._C._distributed_c10d import ProcessGroupNCCL

    def of_one(store: dist.Store, rank: int, _: int, options: Any) -> Any:
        return ProcessGroupNCCL(store, rank, 1, options)

    group = mock.Mock(side_effect=of_one, Options=ProcessGroupNCCL.Options)
    ours, theirs = socket.socketpair()
    OTHER_ENDS.append(theirs)
    link = Link(Channel(ours, timeout_s=10, cancelled=threading.Event()), "nccl", 0)
    with mock.patch("torch._C._distributed_c10d.ProcessGroupNCCL", group), mock.patch.object(links, "_meet"):
        link.use(links.nccl_group(dist.HashStore(), 0, timedelta(seconds=2)), 10)
    return link


def move(link: Link, piece: torch.Tensor, limit_s: float = 10.0) -> float:
    began = time.monotonic()
    link.broadcast(piece)
    link.wait(limit_s)
    return time.monotonic() - began


def busy(seconds: float) -> None:
    torch.cuda._sleep(int(seconds * CYCLES_A_SECOND))  # noqa: SLF001 - torch has no public one


def measure(_: argparse.Namespace, figures: Figures) -> None:
    os.environ |= {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "4", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "200"}
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.zeros(4, device="cuda"))
    link, piece = alone(), torch.zeros(PIECE, dtype=torch.uint8, pin_memory=True)
    move(link, piece)
    figures.row("a piece", 1e3 * move(link, piece), "ms", better="lower")
    busy(1.0)
    figures.row("a piece, beside a busy GPU", 1e3 * move(link, piece), "ms", better="lower")
    with link._stream:  # noqa: SLF001 - that it is late is what is to be tried
        busy(6.0)
    try:
        move(link, piece, limit_s=3.0)
    except LinkError:
        link.close()
    else:
        raise RuntimeError("a broadcast behind six seconds of work was not late after three")
    time.sleep(WATCHDOG_S)
    dist.all_reduce(torch.zeros(4, device="cuda"))
    torch.cuda.synchronize()
    figures.row("the process outlives a late link", 1.0, "", goal=1.0)
