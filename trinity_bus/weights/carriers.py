"""Which carrier a method has."""

from typing import TYPE_CHECKING

from trinity_bus.runtime.device import uses_gpu
from trinity_bus.weights.carrier import Carrier
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.frames import FrameCarrier
from trinity_bus.weights.link.carrier import LinkCarrier
from trinity_bus.weights.transport import Method

if TYPE_CHECKING:
    import torch


def carrier_of(method: Method, device: "torch.device | None" = None) -> Carrier:
    """Return what carries the bytes of a version; over NCCL on ``device``, by default this thread's GPU."""
    if method == "memory":
        return FrameCarrier()
    if method == "gloo":
        return LinkCarrier("gloo")
    if method != "nccl":
        raise WeightTransferError(f"nothing carries versions by {method}")
    if device is None:
        import torch

        device = torch.device("cuda", torch.cuda.current_device()) if uses_gpu() else torch.device("cpu")
    if device.type != "cuda":
        raise WeightTransferError(
            f"nccl carries versions from GPU to GPU, and here they would lie on {device.type}: "
            "set synchronizer.sync_method to memory"
        )
    return LinkCarrier("nccl", device)
