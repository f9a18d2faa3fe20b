"""What makes a folder of weights a Hugging Face model folder: configuration, tokenizer, chat template. No torch."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

from trinity_bus.training.checkpoint.folders import PROGRESS

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
_PATTERNS: Final = ("*.json", "*.jinja", "*.txt", "*.model")


def write_companions(folder: Path, source: Path, dtype: str | None) -> None:
    """Make a folder of weights a model folder that transformers and vLLM read.

    Args:
        folder: Exists already; files in it are overwritten.
        source: Folder of the model that the weights came from.
        dtype: What ``config.json`` is to say about the weights, in torch's words; None for what it says already.

    Raises:
        OSError: One cannot be read or written.
        ValueError: The configuration is no JSON.
    """
    for pattern in _PATTERNS:
        for path in source.glob(pattern):
            if path.name not in (INDEX, CONFIG, PROGRESS):
                shutil.copyfile(path, folder / path.name)
    config: dict[str, Any] = json.loads((source / CONFIG).read_bytes())
    if dtype is not None:
        config.pop("torch_dtype", None)
        config["dtype"] = dtype.removeprefix("torch.")
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
