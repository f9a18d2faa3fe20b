"""One rank of two: makes the checks of ``conformance`` in each layout, together with its sibling; see test_parallel."""

import os
import sys
import warnings
from pathlib import Path

from safetensors.torch import load_file

from tests.support.training.conformance import CHECKS, Subject, batch, same, saved, weights
from trinity_bus.config import TrainerSettings
from trinity_bus.training import parallel, saving
from trinity_bus.training.families import FAMILIES
from trinity_bus.training.megatron_engine import MegatronEngine
from trinity_bus.training.rank_engine import RankEngine

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


RESHARDED = ("qwen2", "qwen3")
"""Families whose training is handed from layout to layout: with biases, and with an embedding that is shared."""


def chained(folder: Path, family: str, number: int) -> Path:
    """Where the checkpoint of the layout of this number lies; 0 is that of one rank."""
    return folder / "chained" / family / str(number)


def go_on(engine: RankEngine, before: Path, after: Path) -> None:
    """Takes over what another layout has written, all of it and exactly, and trains a step on it."""
    progress = engine.load_latest(before)
    assert progress is not None
    kept = load_file(before / f"step-{progress.step:08d}" / saving.STATE)
    kept = {name: tensor for name, tensor in kept.items() if name.startswith("optimizer.")}
    assert len(kept) > 1
    assert same({f"optimizer.{name}": tensor.clone() for name, tensor in engine._optimizer_state()}, kept)
    assert same(weights(engine), load_file(before / f"step-{progress.step:08d}" / "model.safetensors"))
    engine.train_step(batch(progress.step))
    saved(engine, engine.save_checkpoint(after, engine.progress))


def run(folder: Path, name: str, port: str) -> None:
    layout, family_of_all = LAYOUTS[name]
    number = list(LAYOUTS).index(name) + 1
    # A port of its own: one rank may still hold the store of the layout before.
    os.environ["MASTER_PORT"] = port
    with parallel.initialized(TrainerSettings(**layout)) as joined:
        for family in FAMILIES:
            for check in [c for c in CHECKS if c not in ALONE] if family == family_of_all else NUMBERS:
                print(f"rank {joined.rank}: {name}, {family}, {check}", flush=True)  # for who reads of a failure
                scratch = folder / "scratch" / name / family / check
                CHECKS[check](Subject(lambda s: MegatronEngine(s, joined), folder / family, scratch, layout))
        for family in RESHARDED:
            print(f"rank {joined.rank}: {name}, {family}, from another layout", flush=True)
            subject = Subject(lambda s: MegatronEngine(s, joined), folder / family, folder / "scratch", layout)
            go_on(subject.make(), chained(folder, family, number - 1), chained(folder, family, number))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for layout_and_port in zip(LAYOUTS, sys.argv[2:], strict=True):
        run(Path(sys.argv[1]), *layout_and_port)
