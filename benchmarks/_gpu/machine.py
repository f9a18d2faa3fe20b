"""What this machine has: GPUs as torch sees them, versions, cores and memory. A driver may hang, so in a process."""

import argparse
import os
import platform
import shutil

import psutil
import torch

from benchmarks._gpu.figures import Figures
from workers.doctor.checks import DISTRIBUTIONS, installed

LOOKED_FOR = (*DISTRIBUTIONS, "tokenizers", "matplotlib", "transformer-engine", "flash-attn", "flashinfer-python")


def why_no_cuda() -> str:
    if torch.version.cuda is None:
        return "torch was built without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return "" if torch.cuda.device_count() else "torch sees none"


def measure(_: argparse.Namespace, figures: Figures) -> None:
    why = why_no_cuda()
    found = [] if why else [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    figures.say(
        {
            "machine": {
                "why_no_cuda": why,
                "gpus": [
                    {"name": gpu.name, "gib": gpu.total_memory / 2**30, "capability": f"{gpu.major}.{gpu.minor}"}
                    for gpu in found
                ],
                "cuda": torch.version.cuda,
                "nccl": list(torch.cuda.nccl.version()) if found else None,
                "versions": {name: version for name in LOOKED_FOR if (version := installed(name)) is not None},
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.release()} {platform.machine()}",
                "cores": len(os.sched_getaffinity(0)),
                "memory_gib": psutil.virtual_memory().total / 2**30,
                "shm_gib": shutil.disk_usage("/dev/shm").total / 2**30,  # noqa: S108 - its size is what is asked for
            }
        }
    )
