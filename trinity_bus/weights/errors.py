"""Errors of weight transfers."""

from trinity_bus.errors import TrinityError
from trinity_bus.runtime.frames import ProtocolError


class WeightTransferError(TrinityError):
    """A version did not arrive, or not whole. Whoever was to take it serves what it served before."""


class ManifestError(WeightTransferError, ValueError):
    """What the trainer said about a version is malformed, over a limit, or not what was announced."""


class LinkError(WeightTransferError, ConnectionError):
    """The connection to the other side could not be made, broke, or passed its deadline."""


class OtherProtocolError(LinkError):
    """The two sides speak different protocols of weights; the older one is to be upgraded."""

    def __init__(self, who: str, theirs: int, own: int) -> None:
        older = who if theirs < own else "this side"
        super().__init__(
            f"{who} speaks protocol {theirs} of weights, and this side protocol {own}: upgrade {older}; "
            "until then, no weights move between them"
        )


class TornWeightsError(WeightTransferError):
    """Loading failed half way: the model holds tensors of two versions and must not generate any more."""


class VersionGoneError(WeightTransferError):
    """A version cannot be had any more, or has other content than was announced. The newest one can be had."""


class WireError(WeightTransferError, ProtocolError):
    """A message between member and trainer is too long, or is none."""


class TensorFileError(WeightTransferError):
    """A file of tensors is not whole, or not what it should be."""
