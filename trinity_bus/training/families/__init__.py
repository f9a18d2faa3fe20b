"""The model families that can be trained, a file each; ``tensors`` knows how their weights lie in Megatron's model.

A family more is a file beside ``qwen3`` and a line in :data:`FAMILIES`; the tests of parity with transformers take it
up from there.
"""

import json
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

FAMILIES: Final[dict[str, ModelFamily]] = {
    family.model_type: family for family in (Llama(), Qwen2(), Qwen3(), Qwen3Moe())
}
"""By ``model_type`` of ``config.json``."""


def read_shape(folder: Path) -> ModelShape:
    """Read what a model's ``config.json`` says.

    Args:
        folder: Of a Hugging Face model.

    Raises:
        ConversionError: There is no ``config.json``, its family is not known, or it uses something that is not
            implemented.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
        model_type = config["model_type"]
    except FileNotFoundError as error:
        raise ConversionError(f"{path} does not exist: give the folder of a Hugging Face model") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConversionError(f"{path} is no configuration of a model: {error!r}") from error
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise ConversionError(f"{path}: model_type={model_type!r} cannot be trained here; {', '.join(FAMILIES)} can")
    try:
        return family.shape(config)
    except UnsupportedError as error:
        raise ConversionError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConversionError(f"{path} is not a {family.title} configuration: {error!r}") from error
