import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from schemas import ExperienceGroup
from tests.support.fakes.experiences import make_group
from tests.support.training.conformance import same, weights
from trinity_bus.config import TrainerSettings
from trinity_bus.config.trainer import REFUSED_OPTIMIZER_OPTIONS
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.engines.rank_engine import RankEngine
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.errors import ParallelError, TrainingError
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron.core import OptimizerConfig

type MakeEngine = Callable[..., RankEngine]


@pytest.fixture
def batches() -> list[list[ExperienceGroup]]:
    return [[make_group(seed=10 * step + i, version=step) for i in range(3)] for step in range(4)]


def plain_step(folder: Path, groups: Sequence[ExperienceGroup], *, learning_rate: float) -> tuple[float, Any]:
    """One update, on policy in the sense of the rollout logprobs, in plain torch and transformers, sample by sample."""
    from transformers import Qwen3ForCausalLM

    network = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    decayed = [p for p in network.parameters() if p.dim() > 1]
    norms = [p for p in network.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
        lr=learning_rate,
        betas=(0.9, 0.99),
    )
    loss = torch.zeros(())
    count = 0
    for group in groups:
        rewards = group.rewards
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for sample, advantage in zip(group.samples(), advantages.tolist(), strict=True):
            logits = network(torch.from_numpy(sample.tokens.astype(np.int64))[None]).logits[0, :-1].log_softmax(-1)
            targets = torch.from_numpy(sample.tokens[1:].astype(np.int64))
            logprobs = logits.gather(1, targets[:, None])[sample.prompt_length - 1 :, 0]
            ratio = (logprobs - torch.from_numpy(sample.logprobs.copy())).exp()
            surrogate = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
            mask = torch.from_numpy(sample.mask)
            loss = loss + surrogate[mask].sum()
            count += int(mask.sum())
    (loss / count).backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return loss.item() / count, network


def test_a_step_is_what_plain_torch_does(
    engine: MakeEngine, model_folder: Path, batches: list[list[ExperienceGroup]]
) -> None:
    loss, network = plain_step(model_folder, batches[0], learning_rate=1e-2)
    # A small budget: several micro-batches must add up to one.
    trained = engine(weight_decay=0.1, micro_batch_tokens=24)
    metrics = trained.train_step(batches[0])
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert metrics["micro_batches"] > 3
    expected = network.state_dict()
    for name, tensor in trained.hf_tensors():
        # AdamW's first step is the learning rate times the gradient's sign, so rounding shows where that is near zero.
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=2e-4)


def test_the_learning_rate_rises_and_falls_to_nothing_and_the_weights_then_stay(
    engine: MakeEngine, batches: list[list[ExperienceGroup]]
) -> None:
    trained = engine(warmup_steps=2, decay_steps=4, mini_batches=5)
    told = [trained.train_step(batches[0]) for _ in range(4)]
    assert [metrics["learning_rate"] for metrics in told] == pytest.approx([0.005, 0.0075, 0.005, 0.0025])
    assert [metrics["updates"] for metrics in told] == [5] * 4
    before = weights(trained)
    assert trained.train_step(batches[0])["learning_rate"] == 0
    assert same(weights(trained), before)


def test_groups_that_teach_nothing_make_updates_smaller_and_not_fewer(engine: MakeEngine) -> None:
    teaching = [make_group(seed=i, rewards=[0.0, 1.0]) for i in range(2)]
    useless = [make_group(seed=i, rewards=[1.0, 1.0]) for i in range(2, 8)]
    settings = {"mini_batches": 2, "max_grad_norm": 1e9, "learning_rate": 1e-12}
    alone, among = engine(**settings).train_step(teaching), engine(**settings).train_step(teaching + useless)
    assert alone["updates"] == among["updates"] == 2
    tokens = [sum(int(g.mask.sum()) for g in groups) for groups in (teaching, teaching + useless)]
    assert among["grad_norm"] == pytest.approx(alone["grad_norm"] * tokens[0] / tokens[1], rel=1e-3)
    # What is reported stays a mean over trained tokens.
    assert among["entropy"] == pytest.approx(alone["entropy"], rel=1e-4)


def test_recomputed_logprobs_make_the_first_ratio_one(engine: MakeEngine, batches: list[list[ExperienceGroup]]) -> None:
    for mini_batches in (1, 2):
        trained = engine(old_logprobs="recompute", mini_batches=mini_batches, learning_rate=1e-12)
        metrics = trained.train_step(batches[0])
        assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["clip_fraction"] == 0
        assert metrics["importance_weight_mean"] != pytest.approx(1.0, abs=1e-3)


def test_an_engine_says_what_it_cannot_do(model_folder: Path, layout: Layout) -> None:
    path = str(model_folder)
    with pytest.raises(ParallelError, match="torch trains on one rank, not on 4"):
        TorchEngine(TrainerSettings(model_path=path, tensor_parallel=2, data_parallel=2))
    with pytest.raises(ParallelError, match=r"rank 0 of WORLD_SIZE=1 with .*the world must have as many ranks"):
        MegatronEngine(TrainerSettings(model_path=path, data_parallel=2))
    with pytest.raises(TrainingError, match="torch trains in float32"):
        TorchEngine(TrainerSettings(model_path=path, dtype="bfloat16"))


def test_a_step_can_be_given_the_seed_that_it_had(engine: MakeEngine, batches: list[list[ExperienceGroup]]) -> None:
    was, other, obeys = engine(mini_batches=3), engine(mini_batches=3, seed=5), engine(mini_batches=3, seed=5)
    was.train_step(batches[0])
    other.train_step(batches[0])
    obeys.train_step(batches[0], seed=0)
    assert not same(weights(was), weights(other))
    assert same(weights(was), weights(obeys))


def test_options_reach_the_optimizer(engine: MakeEngine, batches: list[list[ExperienceGroup]]) -> None:
    name = "adam_eps" if engine().NAME == "megatron" else "eps"
    plain, slow = engine(), engine(optimizer_options={name: 1e6})
    first = weights(slow)
    for one in (plain, slow):
        one.train_step(batches[0])
    moved = [max(float((after[n] - first[n]).abs().max()) for n in first) for after in (weights(plain), weights(slow))]
    # What gradients are divided by is at least this.
    assert moved[0] > 1e-3
    assert 0 <= moved[1] < 1e-6
    with pytest.raises(TrainingError, match=rf"optimizer_options: {name}s is none; did you mean {name}\?"):
        engine(optimizer_options={f"{name}s": 1e-6})


def test_options_that_are_refused_are_options() -> None:
    known = {*inspect.signature(torch.optim.AdamW).parameters, *(field.name for field in fields(OptimizerConfig))}
    for name in [name for names in REFUSED_OPTIMIZER_OPTIONS for name in names]:
        assert name in known or (name.endswith("_") and any(one.startswith(name) for one in known)), name
