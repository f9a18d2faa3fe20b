"""Hugging Face model folders: reading their tensors by name, and writing one."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open

from trinity_bus.training.companions import INDEX
from trinity_bus.weights.checkpoint.tensor_file import write_tensors

WEIGHTS: Final = "model.safetensors"


def reader(folder: Path) -> Callable[[str], torch.Tensor]:
    """Look tensors up by name in one file or, through the index, in several.

    Raises:
        OSError, SafetensorError: A file is missing, or is none.
        KeyError: From the returned function: there is no such tensor.
    """
    if (folder / INDEX).exists():
        files: Mapping[str, str] = json.loads((folder / INDEX).read_bytes())["weight_map"]
    else:
        with safe_open(folder / WEIGHTS, "pt") as opened:
            files = dict.fromkeys(opened.keys(), WEIGHTS)
    # A name that leads out of the folder is not followed.
    handles = {file: safe_open(folder / Path(file).name, "pt") for file in set(files.values())}
    return lambda name: handles[files[name]].get_tensor(name)  # type: ignore[no-untyped-call]  # not typed there


def write_weights(folder: Path, weights: Callable[[], Iterable[tuple[str, torch.Tensor]]]) -> None:
    """Write weights, by name, into a folder that exists already.

    Their index says which file of the folder holds them: inference servers read every other file of tensors too where
    there is none, and a checkpoint has its optimizer's. Raises as ``write_tensors``, which ``weights`` is for.
    """
    names: dict[str, str] = {}

    def named() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights():
            names[name] = WEIGHTS
            yield name, tensor

    size = write_tensors(folder / WEIGHTS, named, {"format": "pt"})
    index = {"metadata": {"total_size": size}, "weight_map": names}
    (folder / INDEX).write_text(json.dumps(index))
