"""Hugging Face model folders: reading their tensors by name, and writing one.

A folder's numbers are taken as they stand, or not at all. :func:`weights` refuses, by name:

* a tensor that the model lacks, and one that no parameter of it takes: biases that the configuration denies, scales of
  weights in eight bits, a value head. Passed over are what older versions kept beside the weights, the frequencies of
  rotary positions, and an output layer that is the embedding once more;
* numbers that are none of their own (integers, eight bits): they are to be multiplied by scales, which are not known;
* numbers that are not finite;
* what cannot be read, or is no safetensors.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from trinity_bus.runtime.plain_files import within
from trinity_bus.training.checkpoint.folders import INDEX
from trinity_bus.training.errors import ConversionError
from trinity_bus.training.families import ModelShape, tensors
from trinity_bus.weights.tensor_file import write_tensors

WEIGHTS: Final = "model.safetensors"
_TYPES: Final = ("F64", "F32", "F16", "BF16")
_PASSED_OVER: Final = ".rotary_emb.inv_freq"
_SHOWN: Final = 5


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Within the block, errors of a folder's files become ConversionError."""
    try:
        yield
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise ConversionError(f"the weights in {folder} cannot be read: {error}") from error


def weights(folder: Path, shape: ModelShape) -> Callable[[str], torch.Tensor]:
    """Look the tensors of a model up by name, in a folder that holds this model and nothing else."""
    with readable(folder):
        files = _opened(folder)
        wanted = tensors.folder_names(shape)
        if missing := wanted - files.keys():
            raise ConversionError(f"{folder} lacks {_told(missing)}")
        unknown = {name for name in files.keys() - wanted if not name.endswith(_PASSED_OVER)}
        if shape.tied and tensors.OUTPUT in unknown:
            embedding, output = (files[name].get_tensor(name) for name in (tensors.EMBEDDING, tensors.OUTPUT))
            if not torch.equal(embedding, output):
                raise ConversionError(
                    f"{folder}: config.json says tie_word_embeddings, and {tensors.OUTPUT} is not {tensors.EMBEDDING}"
                )
            unknown.remove(tensors.OUTPUT)
        if unknown:
            raise ConversionError(
                f"{folder} has what no parameter of this model takes: {_told(unknown)}: without it the model would be "
                "another one"
            )
        types = {name: files[name].get_slice(name).get_dtype() for name in wanted}
        if odd := {name for name, kind in types.items() if kind not in _TYPES}:
            kinds = ", ".join(sorted({types[name] for name in odd}))
            raise ConversionError(
                f"{folder} has weights of type {kinds}: {_told(odd)}: they are quantized, and mean nothing without "
                "their scales; give the model as it was before, or dequantize it"
            )

    def read(name: str) -> torch.Tensor:
        tensor: torch.Tensor = files[name].get_tensor(name)
        if tensor.numel() and not all(map(torch.isfinite, torch.aminmax(tensor))):
            raise ConversionError(f"{folder}: {name} has numbers that are not finite")
        return tensor

    return read


def _opened(folder: Path) -> dict[str, Any]:
    if (folder / INDEX).exists():
        content = json.loads(within(folder / INDEX, folder).read_bytes())
        files = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
            raise ValueError(f"{INDEX} has no weight_map")
        # A name that leads out of the folder is not followed.
        handles = {file: safe_open(within(folder / Path(file).name, folder), "pt") for file in set(files.values())}
        return {name: handles[file] for name, file in files.items()}
    if not (folder / WEIGHTS).exists() and any(folder.glob("*.bin")):
        raise ValueError(f"there is no {WEIGHTS}; files that are pickled (*.bin) are not read")
    opened = safe_open(within(folder / WEIGHTS, folder), "pt")
    return dict.fromkeys(opened.keys(), opened)  # type: ignore[no-untyped-call]  # not typed there


def _told(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more


def write_weights(folder: Path, weights: Callable[[], Iterable[tuple[str, torch.Tensor]]]) -> None:
    """Write weights into a folder that exists already, with an index that says which file of it holds them.

    Where there is none inference servers read every other file of tensors too, and a checkpoint has its optimizer's.
    """
    names: dict[str, str] = {}

    def named() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights():
            names[name] = WEIGHTS
            yield name, tensor

    size = write_tensors(folder / WEIGHTS, named, {"format": "pt"})
    index = {"metadata": {"total_size": size}, "weight_map": names}
    (folder / INDEX).write_text(json.dumps(index))
