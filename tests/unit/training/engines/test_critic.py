"""The critic, against transformers and AdamW in plain torch; and that it learns what is to be expected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from schemas import ExperienceGroup
from tests.support.fakes.experiences import make_group
from tests.support.training.conformance import same, weights
from tests.support.training.samples import train_sample
from trinity_bus.config import TrainerSettings
from trinity_bus.training.engines.critic import Critic
from trinity_bus.training.engines.micro_batch import MicroBatchBudget
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.layout import Layout
from trinity_bus.training.steps.packing import TrainSample
from trinity_bus.training.steps.step_plan import Update

ALONE = Layout.alone(torch.device("cpu"))
RATE = 1e-3


@pytest.fixture
def make(model_folder: Path) -> Callable[..., Critic]:
    def made(**settings: Any) -> Critic:
        values = {"model_path": str(model_folder), "critic_learning_rate": RATE, "micro_batch_tokens": 24, **settings}
        return Critic(
            model_folder, TrainerSettings(**values), ALONE, budget=MicroBatchBudget(24), before_each=lambda: None
        )

    return made


def samples_of(group: ExperienceGroup, values: float | None = 0.0) -> list[TrainSample]:
    rng = np.random.default_rng(0)
    return [
        train_sample(
            sample.tokens,
            sample.prompt_length,
            mask=sample.mask,
            rollout_logprobs=sample.logprobs,
            old_logprobs=sample.logprobs,
            values=None if values is None else np.full(len(sample.mask), values, np.float32),
            returns=rng.normal(1.0, 1.0, len(sample.mask)).astype(np.float32),
        )
        for sample in group.samples()
    ]


def one_update(samples: list[TrainSample]) -> Update:
    tokens = sum(sample.trained_tokens for sample in samples)
    return Update(samples=samples, divisor=2.0 * tokens, weight=tokens)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_an_update_is_what_plain_torch_does(
    make: Callable[..., Critic], model_folder: Path, clip: float | None
) -> None:
    from transformers import Qwen3Model

    # Values of before are far from what it says now, so that clipping has a say.
    samples = samples_of(make_group(), values=0.7)
    critic = make(value_clip=clip)
    for of_sample in critic.values(samples):
        assert (of_sample == 0).all()
    told = critic.train(one_update(samples))

    trunk = Qwen3Model.from_pretrained(model_folder, dtype=torch.float32)
    head = torch.nn.Linear(trunk.config.hidden_size, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    parameters = [*trunk.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.99), weight_decay=0.0)

    def values(sample: TrainSample) -> torch.Tensor:
        hidden = trunk(torch.from_numpy(sample.tokens.astype(np.int64))[None]).last_hidden_state[0]
        found: torch.Tensor = head(hidden)[sample.prompt_length - 1 : -1, 0]
        return found

    losses = []
    for sample in samples:
        assert sample.returns is not None
        assert sample.values is not None
        for now, then, wanted, trained in zip(
            values(sample), sample.values.tolist(), sample.returns.tolist(), sample.mask.tolist(), strict=True
        ):
            error = (now - wanted) ** 2
            if clip is not None:
                error = torch.maximum(error, (then + (now - then).clamp(-clip, clip) - wanted) ** 2)
            losses += [error / 2] if trained else []
    loss = torch.stack(losses).sum() / (2 * len(losses))
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    assert told["critic_loss"] == pytest.approx(2 * loss.item(), rel=1e-4)
    assert told["critic_grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
    for sample, found in zip(samples, critic.values(samples), strict=True):
        np.testing.assert_allclose(found, values(sample).detach().numpy(), atol=2e-5)


def test_an_update_that_is_not_finite_changes_nothing_and_is_told(
    make: Callable[..., Critic], caplog: pytest.LogCaptureFixture
) -> None:
    critic, samples = make(), samples_of(make_group())
    critic.train(one_update(samples))
    before = {name: tensor.clone() for name, tensor in critic.state().items()}
    broken = samples_of(make_group())
    assert broken[0].returns is not None
    broken[0].returns[:] = np.inf
    critic.train(one_update(broken))
    assert all(torch.equal(before[name], tensor) for name, tensor in critic.state().items())
    assert "its update is skipped" in caplog.text


def test_ppo_with_a_critic_tells_of_it(model_folder: Path) -> None:
    settings = TrainerSettings(model_path=str(model_folder), advantage="gae", critic_learning_rate=1e-2)
    trained = TorchEngine(settings)
    told = [trained.train_step([make_group(rewards=[1.0, 1.0, 1.0])]) for _ in range(12)]
    # Nothing was expected, and everything turned out the same.
    assert told[0]["critic_explained_variance"] == 0.0
    assert told[-1]["critic_loss"] < 0.3 * told[0]["critic_loss"]
    assert told[0]["groups_skipped"] == 0


def test_while_it_warms_up_nothing_else_learns(model_folder: Path) -> None:
    settings = {"advantage": "gae", "critic_learning_rate": RATE, "critic_warmup_steps": 1, "learning_rate": RATE}
    engine = TorchEngine(TrainerSettings(model_path=str(model_folder), mini_batches=2, **settings))

    before = weights(engine)
    first = engine.train_step([make_group(seed=0)])
    assert same(weights(engine), before)
    second = engine.train_step([make_group(seed=1)])
    assert not same(weights(engine), before)
    assert ("loss" in first, "loss" in second) == (False, True)
    for metrics in (first, second):
        assert metrics["updates"] == 2
        assert metrics["critic_grad_norm"] > 0
