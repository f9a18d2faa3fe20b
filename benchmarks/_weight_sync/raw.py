"""What the wire can do: a plain gloo broadcast."""

import time
from datetime import timedelta
from typing import Any

import torch

LIMIT_S = 60.0


def raw_group(store: Any, prefix: str, rank: int, size: int) -> Any:
    from torch._C._distributed_c10d import ProcessGroupGloo
    from torch.distributed import PrefixStore

    return ProcessGroupGloo(PrefixStore(prefix, store), rank, size, timedelta(seconds=LIMIT_S))


def raw_broadcast(group: Any, buffer: torch.Tensor) -> float:
    """Move a buffer from rank 0 to all others; seconds from when all were ready until this one is done."""
    from torch._C._distributed_c10d import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = 0
    group.barrier().wait()
    began = time.perf_counter()
    group.broadcast([buffer], options).wait()
    return time.perf_counter() - began
