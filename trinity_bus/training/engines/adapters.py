"""LoRA (Hu et al., arXiv:2106.09685): what both engines share of it, and what PEFT's format has of it.

The weights ``W`` of every projection of attention and MLP stay as they are; what is trained is ``A`` [rank, in] and
``B`` [out, rank], and the layer computes with ``W + alpha / rank * B A``. ``A`` begins with random numbers that follow
from the seed and the projection's name, in any layout, and ``B`` with zeros.

What is exported, kept as a model and published are the merged weights, unless ``mesh.adapter_rank`` has the adapter
published alone. Beside the exported model, in :data:`FOLDER`, lies the adapter as PEFT has it.
"""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

from trinity_bus.config import TrainerSettings

TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FOLDER: Final = "adapter"


def initial_a(module: str, features: int, settings: TrainerSettings) -> torch.Tensor:
    """[rank, features], uniform as PEFT's is."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{settings.seed} {module}".encode()))
    return (torch.rand(settings.lora_rank, features, generator=generator) * 2 - 1) * features**-0.5


def peft_names(module: str) -> tuple[str, str]:
    return f"base_model.model.{module}.lora_A.weight", f"base_model.model.{module}.lora_B.weight"


def write_peft(
    folder: Path, source: Path, adapter: Iterable[tuple[str, torch.Tensor]], settings: TrainerSettings
) -> None:
    """Write an adapter as PEFT, vLLM and others read it, into a folder that does not exist yet."""
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(source),
        "r": settings.lora_rank,
        "lora_alpha": settings.lora_alpha,
        "lora_dropout": 0.0,
        "target_modules": list(TARGETS),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({name: tensor.cpu().contiguous() for name, tensor in adapter}, folder / "adapter_model.safetensors")
