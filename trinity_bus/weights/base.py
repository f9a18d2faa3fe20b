"""Which model an adapter is for.

An adapter that is published alone means something beside the weights that it was trained beside, and is well formed
beside any others. So it travels with the identity of those, as one more tensor, which its checksum covers; whoever is
to serve it compares that with its own.
"""

import hashlib
from pathlib import Path
from typing import Final

from trinity_bus.weights.errors import WeightTransferError

BASE: Final = "base.sha256"  # the tensor, uint8, that has the identity


def identity(folder: Path) -> bytes:
    """Return what tells the weights in a Hugging Face folder from others: a digest of its files, in order."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightTransferError(f"{folder} has no safetensors, by which explorers and trainer would know their base")
    whole = hashlib.sha256()
    try:
        for path in files:
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise WeightTransferError(f"{folder} cannot be read: {error}") from error
    return whole.digest()
