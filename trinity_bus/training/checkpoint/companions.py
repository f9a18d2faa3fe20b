"""What makes a folder of weights a Hugging Face model folder: configuration, tokenizer, chat template. No torch."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

from trinity_bus.runtime.plain_files import within
from trinity_bus.training.checkpoint.folders import PROGRESS

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
_PATTERNS: Final = ("*.json", "*.jinja", "*.txt", "*.model")


def write_companions(folder: Path, source: Path, dtype: str | None) -> None:
    """Make a folder of weights, which exists already, a model folder that transformers and vLLM read.

    Args:
        dtype: What ``config.json`` is to say about the weights, in torch's words; None for what it says already.

    Raises:
        OSError: One cannot be read or written, or is a link that leads out of the folder.
        ValueError: The configuration is no JSON.
    """
    for pattern in _PATTERNS:
        for path in source.glob(pattern):
            if path.name not in (INDEX, CONFIG, PROGRESS):
                shutil.copyfile(within(path, source), folder / path.name)
    config: dict[str, Any] = json.loads(within(source / CONFIG, source).read_bytes())
    if dtype is not None:
        config.pop("torch_dtype", None)
        config["dtype"] = dtype.removeprefix("torch.")
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
