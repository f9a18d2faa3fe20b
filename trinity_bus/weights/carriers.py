"""Which carrier a method has."""

from typing import TYPE_CHECKING

from trinity_bus.weights.carrier import Carrier
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.frames import FrameCarrier
from trinity_bus.weights.link.carrier import LinkCarrier
from trinity_bus.weights.transport import Method

if TYPE_CHECKING:
    import torch


def carrier_of(method: Method, device: "torch.device | None" = None) -> Carrier:
    """Return what carries the bytes of a version.

    Args:
        method: Other than ``checkpoint``, which has none.
        device: The GPU on which they lie, for ``nccl``; by default, that of this thread.

    Raises:
        WeightTransferError: There is no such carrier.
    """
    if method == "memory":
        return FrameCarrier()
    if method == "gloo":
        return LinkCarrier("gloo")
    if method != "nccl":
        raise WeightTransferError(f"nothing carries versions by {method}")
    if device is None:
        import torch

        device = torch.device("cuda", torch.cuda.current_device())
    return LinkCarrier("nccl", device)
