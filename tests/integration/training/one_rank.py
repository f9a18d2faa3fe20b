"""One rank of two: makes the checks of ``conformance`` in each layout, together with its sibling; see test_parallel."""

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch.testing import assert_close

from tests.support.training.conformance import CHECKS, OBJECTIVES, Subject, batch, checks_of, same, saved, weights
from trinity_bus.config import TrainerSettings
from trinity_bus.training import layout_rules
from trinity_bus.training.checkpoint import STATE
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.engines.rank_engine import RankEngine
from trinity_bus.training.errors import ParallelError
from trinity_bus.training.families import FAMILIES, read_shape
from trinity_bus.training.megatron import parallel

LAYOUTS = {
    "tp2": ({"tensor_parallel": 2}, "qwen2"),
    "tp2, sequence": ({"tensor_parallel": 2, "sequence_parallel": True}, "qwen3_moe"),
    "pp2": ({"pipeline_parallel": 2}, "qwen3"),
    "cp2": ({"context_parallel": 2}, "llama"),
    "dp2": ({"data_parallel": 2}, "llama"),
    "dp2, distributed optimizer": ({"data_parallel": 2, "distributed_optimizer": True}, "qwen3"),
    "dp2, ep2": ({"data_parallel": 2, "expert_parallel": 2}, "qwen3_moe"),
    "cp2, ep2": ({"context_parallel": 2, "expert_parallel": 2, "distributed_optimizer": True}, "qwen3_moe"),
}
"""How two ranks share the work; and the family that more than numbers is checked with."""
THOROUGH = ("tp2", "pp2", "dp2")
"""What is made with all checks."""
OBJECTIVES_OF = {
    "tp2": tuple(OBJECTIVES),
    "dp2": tuple(OBJECTIVES),
    # Each rank has a part of each sequence.
    "cp2": tuple(OBJECTIVES),
    # The last stage computes them all as one rank does; what differs is a critic beside it, and what is kept.
    "pp2": ("ppo", "topr, a critic, kl in the reward", "warm, activations computed again"),
}
"""Those that are compared, with the family that more is checked with; else and of the others the first alone."""
NUMBERS = ("logits", "gradients_of_one_update")
MORE = (*NUMBERS, "replayed_routes", "lora", "losses", "restart", "what_is_published", "fewer_samples_than_ranks")
BESIDE = {
    # Where tokens are split: the family that more is checked with has no adapters.
    ("tp2, sequence", "qwen2"): ("lora",),
    ("pp2", "qwen3_moe"): ("replayed_routes",),
    ("cp2", "llama"): ("examples", "kept_tokens"),
}
"""Checks that are made of a layout and a family beside these."""
REFUSED = {("tp2", "qwen3_moe")} | {
    (layout, family) for layout in ("dp2, ep2", "cp2, ep2") for family in ("llama", "qwen2", "qwen3")
}
"""What cannot be trained, and nothing else: a rule that refuses more would have less checked, and nobody knew."""
ALONE = ("an_interruption",)
"""What is for one rank only: where one stops, the others wait for it in vain."""


CHAINS = {
    "qwen2": ("tp2", "pp2"),
    "qwen3": ("pp2", "dp2, distributed optimizer"),
    "qwen3_moe": ("tp2, sequence", "dp2, ep2", "cp2, ep2"),
}
"""Through which layouts, in their order above, training is handed on by checkpoints, from one rank and to one rank."""
SOME = ("tp2", "pp2", "cp2", "dp2, ep2")
"""Layouts that are tried for each change: one of each way to share the work."""
CHAINED_WITH: dict[str, dict[str, Any]] = {"qwen2": {"advantage": "gae"}}
"""With which settings; the first has a critic to hand on, too."""


def chain_of(family: str, layouts: Sequence[str]) -> list[str]:
    """Of the layouts that are tried."""
    return [name for name in CHAINS[family] if name in layouts]


def chained(folder: Path, family: str, number: int) -> Path:
    """Where the checkpoint of the layout of this number lies; 0 is that of one rank."""
    return folder / "chained" / family / str(number)


def go_on(engine: RankEngine, before: Path, after: Path) -> None:
    """Takes over what another layout has written, all of it and exactly, and trains a step on it."""
    progress = engine.load_latest(before)
    assert progress is not None
    kept = load_file(before / f"step-{progress.step:08d}" / STATE)
    kept = {name: tensor for name, tensor in kept.items() if name.startswith(("optimizer.", "adapter.", "critic."))}
    assert len(kept) > 1
    has = {f"optimizer.{name}": tensor.clone() for name, tensor in engine._optimizer_state()}
    has |= {f"adapter.{name}": tensor.clone() for name, tensor in engine.adapter_tensors()}
    if engine._critic is not None:
        has |= {f"critic.{name}": tensor.clone() for name, tensor in engine._critic.state().items()}
    assert same(has, kept)
    served = load_file(before / f"step-{progress.step:08d}" / "model.safetensors")
    # What adapters add is computed anew, from shards of another size.
    assert_close(weights(engine), served, rtol=0, atol=1e-6 if engine.settings.lora_rank else 0)
    engine.train_step(batch(progress.step))
    saved(engine, engine.save_checkpoint(after, engine.progress))


def run(folder: Path, name: str, port: str, layouts: Sequence[str]) -> None:
    layout, family_of_more = LAYOUTS[name]
    # A port of its own: one rank may still hold the store of the layout before.
    os.environ["MASTER_PORT"] = port
    joined = parallel.initialize(TrainerSettings(**layout))
    for family in FAMILIES:
        try:
            layout_rules.check(TrainerSettings(**layout), read_shape(folder / family), "megatron")
        except ParallelError:
            assert (name, family) in REFUSED
            continue
        assert (name, family) not in REFUSED
        own = family == family_of_more
        # Where ranks meet within a pass, one that begins anew would be missed.
        alone = ALONE if joined.passes_alone else (*ALONE, "short_of_memory")
        possible = [check for check in checks_of(family) if check not in alone]
        wanted = (
            possible if own and name in THOROUGH else [*(MORE if own else NUMBERS), *BESIDE.get((name, family), ())]
        )
        checks = [check for check in possible if check in wanted]
        objectives = OBJECTIVES_OF[name] if own and name in OBJECTIVES_OF else tuple(OBJECTIVES)[:1]
        for check in checks:
            print(f"rank {joined.rank}: {name}, {family}, {check}", flush=True)  # for who reads of a failure
            scratch = folder / "scratch" / name / family / check
            subject = Subject(MegatronEngine, folder / family, scratch, layout, objectives)
            CHECKS[check](subject)
    for family in [family for family, chain in CHAINS.items() if name in chain]:
        print(f"rank {joined.rank}: {name}, {family}, from another layout", flush=True)
        subject = Subject(MegatronEngine, folder / family, folder / "scratch", layout)
        number = chain_of(family, layouts).index(name) + 1
        go_on(
            subject.make(**CHAINED_WITH.get(family, {})),
            chained(folder, family, number - 1),
            chained(folder, family, number),
        )
    parallel.shut_down()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    ports = dict(argument.split(":") for argument in sys.argv[2:])
    for name, port in ports.items():
        run(Path(sys.argv[1]), name, port, [*ports])
