"""SFT, DPO and MIX against the same written down again, on transformers' own logits and torch's own gradients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax

from tests.support.fakes.examples import demonstrations, preferences
from tests.support.fakes.experiences import make_group
from trinity_bus.config import TrainerSettings
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.steps.packing import TrainSample


def engine_of(folder: Path, **settings: Any) -> TorchEngine:
    values = {"model_path": str(folder), "threads": 1, "micro_batch_tokens": 24, "learning_rate": 1e-3, **settings}
    return TorchEngine(TrainerSettings(**values))


def gradients(engine: TorchEngine) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in engine._network.named_parameters() if p.grad is not None}


def ours(engine: TorchEngine, samples: list[TrainSample], groups: Any = ()) -> tuple[float, dict[str, torch.Tensor]]:
    updates, _ = engine._with_passes(engine.plan(groups, examples=samples).updates)
    (update,) = updates
    sums, _ = engine._accumulate(update.samples, 1 / update.divisor)
    return float(sums[0]), gradients(engine)


def answer_logprobs(engine: TorchEngine, sample: TrainSample) -> torch.Tensor:
    """Of the tokens of an answer, [trained]."""
    tokens = torch.from_numpy(sample.tokens.astype(np.int64))
    logits = engine._network(input_ids=tokens[None]).logits[0, :-1]
    found = log_softmax(logits, -1).gather(1, tokens[1:, None])[sample.prompt_length - 1 :, 0]
    return found[torch.from_numpy(sample.mask)]


def check(engine: TorchEngine, found: tuple[float, dict[str, torch.Tensor]], expected: torch.Tensor) -> None:
    engine._optimizer.zero_grad()
    expected.backward()
    loss, ours = found
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    for name, gradient in gradients(engine).items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6)


def test_sft_is_the_mean_cross_entropy_of_what_is_shown(model_folder: Path) -> None:
    # A KL penalty, an entropy bonus and a correction are nothing to what nobody drew.
    engine = engine_of(model_folder, loss="sft", kl_coef=0.5, entropy_coef=0.5, old_logprobs="recompute")
    samples = demonstrations(5, weights=[1.0, 2.0, 1.0, 0.0, 0.5])
    found = ours(engine, samples)
    total, weight = torch.zeros(()), 0.0
    for sample in samples:
        tokens = torch.from_numpy(sample.tokens.astype(np.int64))
        logits = engine._network(input_ids=tokens[None]).logits[0, :-1]
        targets = tokens[1:].clone()
        targets[: sample.prompt_length - 1] = -100
        targets[sample.prompt_length - 1 :][torch.from_numpy(~sample.mask)] = -100
        total = total + sample.scale * cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
        weight += sample.scale * int(sample.mask.sum())
    check(engine, found, total / weight)


def test_dpo_is_the_papers_loss_beside_the_first_model(model_folder: Path) -> None:
    engine, reference = engine_of(model_folder, loss="dpo", dpo_beta=0.3), engine_of(model_folder, loss="sft")
    engine.train_step((), examples=preferences(4, seed=9))  # so that policy and reference differ
    samples = preferences(5, weights=[1.0, 2.0, 1.0, 0.0, 0.5])
    found = ours(engine, samples)
    total, weight, gained = torch.zeros(()), 0.0, []
    for chosen, rejected in zip(samples[::2], samples[1::2], strict=True):
        better, worse = (answer_logprobs(engine, s).sum() for s in (chosen, rejected))
        with torch.no_grad():
            before = answer_logprobs(reference, chosen).sum() - answer_logprobs(reference, rejected).sum()
        gain = better - worse - before
        pair = chosen.scale * (chosen.trained_tokens + rejected.trained_tokens)
        total = total + pair * -torch.log(torch.sigmoid(0.3 * gain))
        weight += pair
        gained.append(gain.item())
    check(engine, found, total / weight)
    told = engine.train_step((), examples=samples)
    shares = np.array([1.0, 2.0, 1.0, 0.0, 0.5]) / 4.5
    assert told["dpo_margin"] == pytest.approx(0.3 * float(shares @ gained), rel=1e-3)
    assert told["dpo_accuracy"] == pytest.approx(float(shares @ (np.array(gained) > 0)))
    assert told["examples"] == 4


def test_dpo_learns_which_answer_is_better(model_folder: Path) -> None:
    engine, samples = engine_of(model_folder, loss="dpo", learning_rate=3e-3), preferences(8)
    told = [engine.train_step((), examples=samples) for _ in range(8)]
    assert told[0]["loss"] == pytest.approx(np.log(2), rel=1e-5)
    assert told[0]["dpo_margin"] == 0
    assert told[-1]["loss"] < 0.5 * told[0]["loss"]
    assert told[-1]["dpo_accuracy"] == 1


@pytest.mark.parametrize(("loss", "advantage"), [("ppo", "grpo"), ("gspo", "rloo"), ("ppo", "reinforce_plus_plus")])
def test_mix_is_the_weighed_sum_of_both_losses(model_folder: Path, loss: str, advantage: str) -> None:
    settings = {"loss": loss, "advantage": advantage, "entropy_coef": 0.1, "kl_coef": 0.1, "old_logprobs": "recompute"}
    groups, shown = [make_group(seed=i) for i in range(2)], demonstrations(4, weights=[1.0, 2.0, 1.0, 1.0])
    mixed = ours(engine_of(model_folder, strategy="mix", mix_coef=0.25, **settings), shown, groups)
    drawn = ours(engine_of(model_folder, **settings), [], groups)
    taught = ours(engine_of(model_folder, loss="sft"), shown)
    assert mixed[0] == pytest.approx(0.75 * drawn[0] + 0.25 * taught[0], rel=1e-4)
    for name, gradient in mixed[1].items():
        torch.testing.assert_close(gradient, 0.75 * drawn[1][name] + 0.25 * taught[1][name], rtol=1e-4, atol=1e-6)


def test_where_a_batch_teaches_nothing_the_demonstrations_do(model_folder: Path) -> None:
    shown = demonstrations(4)
    engine = engine_of(model_folder, strategy="mix", mix_coef=0.25)
    mixed = ours(engine, shown, [make_group(rewards=[1.0, 1.0])])
    taught = ours(engine_of(model_folder, loss="sft"), shown)
    for name, gradient in mixed[1].items():
        torch.testing.assert_close(gradient, 0.25 * taught[1][name], rtol=1e-4, atol=1e-6)


def test_examples_of_no_weight_change_nothing(model_folder: Path) -> None:
    engine = engine_of(model_folder, loss="sft")
    told = engine.train_step((), examples=demonstrations(2, weights=[0.0, 0.0]))
    assert (told["updates"], told["examples"]) == (0, 0)
    assert engine.progress.step == 1
