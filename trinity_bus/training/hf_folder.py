"""Hugging Face model folders: reading their tensors by name, and writing one."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from trinity_bus.runtime.plain_files import within
from trinity_bus.training.companions import INDEX

WEIGHTS: Final = "model.safetensors"


def reader(folder: Path) -> Callable[[str], torch.Tensor]:
    """Look tensors up by name in one file or, through the index, in several.

    Raises:
        OSError, SafetensorError: A file is missing, or is none.
        KeyError: From the returned function: there is no such tensor.
    """
    if (folder / INDEX).exists():
        files: Mapping[str, str] = json.loads(within(folder / INDEX, folder).read_bytes())["weight_map"]
    else:
        with safe_open(within(folder / WEIGHTS, folder), "pt") as opened:
            files = dict.fromkeys(opened.keys(), WEIGHTS)
    # A name that leads out of the folder is not followed.
    handles = {file: safe_open(within(folder / Path(file).name, folder), "pt") for file in set(files.values())}
    return lambda name: handles[files[name]].get_tensor(name)  # type: ignore[no-untyped-call]  # not typed there


def write_weights(folder: Path, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Write weights, by name, into a folder that exists already.

    Their index says which file of the folder holds them: inference servers read every other file of tensors too where
    there is none, and a checkpoint has its optimizer's.
    """
    tensors = {name: tensor.cpu() for name, tensor in weights}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(tensors, WEIGHTS)}
    (folder / INDEX).write_text(json.dumps(index))
