"""The model families that can be trained, a file each; ``tensors`` knows how their weights lie in Megatron's model.

A family more is a file beside ``qwen3`` and a line in :data:`FAMILIES`; the tests of parity with transformers take it
up from there.
"""

import json
import math
from pathlib import Path
from typing import Final

from trinity_bus.training.errors import ConversionError
from trinity_bus.training.families.family import ModelFamily, UnsupportedError
from trinity_bus.training.families.llama import Llama
from trinity_bus.training.families.qwen2 import Qwen2
from trinity_bus.training.families.qwen3 import Qwen3
from trinity_bus.training.families.qwen3_moe import Qwen3Moe
from trinity_bus.training.families.shape import ModelShape

__all__ = ["FAMILIES", "ModelFamily", "ModelShape", "read_shape"]

# By ``model_type`` of ``config.json``
FAMILIES: Final[dict[str, ModelFamily]] = {
    family.model_type: family for family in (Llama(), Qwen2(), Qwen3(), Qwen3Moe())
}
# Of a ``config.json``: somebody else may have written it
_MAX_BYTES: Final = 4 << 20
_MAX_SIZE: Final = 1 << 31
_SIZES: Final = ("layers", "hidden", "heads", "groups", "head_dim", "intermediate", "vocabulary", "max_positions")
_UNREADABLE: Final = (KeyError, TypeError, ValueError, ArithmeticError, RecursionError)


def read_shape(folder: Path) -> ModelShape:
    """Read what a model's ``config.json`` says.

    Raises:
        ConversionError: There is none, its family is not known, or it uses something that is not implemented.
    """
    path = folder / "config.json"
    try:
        config = json.loads(_read(path))
        model_type = config["model_type"]
    except FileNotFoundError as error:
        raise ConversionError(f"{path} does not exist: give the folder of a Hugging Face model") from error
    except _UNREADABLE as error:
        raise ConversionError(f"{path} is no configuration of a model: {error!r}") from error
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise ConversionError(f"{path}: model_type={model_type!r} cannot be trained here; {', '.join(FAMILIES)} can")
    try:
        return _possible(family.shape(config))
    except UnsupportedError as error:
        raise ConversionError(f"{path}: {error}") from error
    except _UNREADABLE as error:
        raise ConversionError(f"{path} is not a {family.title} configuration: {error!r}") from error


def _read(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        # Reading it may never end.
        raise ValueError("no file")
    with path.open("rb") as file:
        found = file.read(_MAX_BYTES + 1)
    if len(found) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES} bytes")
    return found


def _possible(shape: ModelShape) -> ModelShape:
    for name in _SIZES:
        if not 0 < getattr(shape, name) <= _MAX_SIZE:
            raise ValueError(f"{name} is not from 1 to {_MAX_SIZE}")
    if not (0 < shape.norm_epsilon < math.inf and 0 < shape.rope_theta < math.inf):
        raise ValueError("rms_norm_eps and rope_theta are finite, and above 0")
    if not 0 <= shape.experts_per_token <= shape.experts <= _MAX_SIZE:
        raise ValueError(f"{shape.experts_per_token} of {shape.experts} experts")
    return shape
