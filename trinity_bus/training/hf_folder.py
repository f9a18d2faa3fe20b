"""Hugging Face model folders: reading their tensors by name, and writing one."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from trinity_bus.training.checkpoint import PROGRESS

WEIGHTS: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_COMPANIONS: Final = ("*.json", "*.jinja", "*.txt", "*.model")
"""What else belongs to a model folder: configuration, tokenizer, chat template."""


def reader(folder: Path) -> Callable[[str], torch.Tensor]:
    """Look tensors up by name in one file or, through the index, in several.

    Raises:
        OSError, SafetensorError: A file is missing, or is none.
        KeyError: From the returned function: there is no such tensor.
    """
    if (folder / _INDEX).exists():
        files: Mapping[str, str] = json.loads((folder / _INDEX).read_bytes())["weight_map"]
    else:
        with safe_open(folder / WEIGHTS, "pt") as opened:
            files = dict.fromkeys(opened.keys(), WEIGHTS)
    # A name that leads out of the folder is not followed.
    handles = {file: safe_open(folder / Path(file).name, "pt") for file in set(files.values())}
    return lambda name: handles[files[name]].get_tensor(name)  # type: ignore[no-untyped-call]  # not typed there


def write_companions(folder: Path, source: Path, dtype: torch.dtype) -> None:
    """Write what makes a folder of weights a model folder that transformers and vLLM read.

    Args:
        folder: Exists already; files in it are overwritten.
        source: Folder that the model came from; its configuration and tokenizer are copied.
        dtype: What ``config.json`` is to say about the weights.
    """
    for pattern in _COMPANIONS:
        for path in source.glob(pattern):
            if path.name not in (_INDEX, "config.json", PROGRESS):
                shutil.copyfile(path, folder / path.name)
    config: dict[str, Any] = json.loads((source / "config.json").read_bytes())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_weights(folder: Path, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Write weights, by name, into a folder that exists already."""
    save_file({name: tensor.cpu() for name, tensor in weights}, folder / WEIGHTS, metadata={"format": "pt"})
