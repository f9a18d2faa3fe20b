"""One rank of two: makes the checks of ``conformance`` in each layout, together with its sibling; see test_parallel."""

import os
import sys
import warnings
from pathlib import Path

from tests.support.training.conformance import CHECKS, Subject
from trinity_bus.config import TrainerSettings
from trinity_bus.training import parallel
from trinity_bus.training.families import FAMILIES
from trinity_bus.training.megatron_engine import MegatronEngine

LAYOUTS = {
    "tp2": ({"tensor_parallel": 2}, "qwen2"),
    "pp2": ({"pipeline_parallel": 2}, "qwen3"),
    "dp2": ({"data_parallel": 2}, "llama"),
    "dp2, distributed optimizer": ({"data_parallel": 2, "distributed_optimizer": True}, "qwen3"),
}
"""How two ranks share the work; and the family that all checks are made with, the others only those of NUMBERS."""
NUMBERS = ("logits", "gradients_of_one_update")
ALONE = ("an_interruption",)
"""What is for one rank only: where one stops, the others wait for it in vain."""


def run(folder: Path, name: str, port: str) -> None:
    layout, family_of_all = LAYOUTS[name]
    # A port of its own: one rank may still hold the store of the layout before.
    os.environ["MASTER_PORT"] = port
    with parallel.initialized(TrainerSettings(**layout)) as joined:
        for family in FAMILIES:
            for check in [c for c in CHECKS if c not in ALONE] if family == family_of_all else NUMBERS:
                print(f"rank {joined.rank}: {name}, {family}, {check}", flush=True)  # for who reads of a failure
                scratch = folder / "scratch" / name / family / check
                CHECKS[check](Subject(lambda s: MegatronEngine(s, joined), folder / family, scratch, layout))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for layout_and_port in zip(LAYOUTS, sys.argv[2:], strict=True):
        run(Path(sys.argv[1]), *layout_and_port)
