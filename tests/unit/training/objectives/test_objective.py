"""What tokens cost together, and estimators of the KL divergence: by hand, against the formulas written down again, and
over a whole vocabulary, where the divergence itself is known.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.training.objectives import evaluate, tokens
from trinity_bus.config import TrainerSettings
from trinity_bus.errors import ConfigError
from trinity_bus.training.objectives import Need
from trinity_bus.training.objectives.losses import Tokens
from trinity_bus.training.objectives.objective import ESTIMATORS, Objective


def log(ratio: float) -> float:
    return math.log(ratio)


CLIP = TrainerSettings(clip_low=0.2, clip_high=0.28, correction="none")


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        pytest.param(1.0, 2.0, -2.0, -2.0, id="on policy: minus the advantage"),
        pytest.param(1.2, 2.0, -2.4, -2.4, id="up, within: still follows the ratio"),
        pytest.param(1.5, 2.0, -2.56, 0.0, id="up, beyond clip-higher: stops"),
        pytest.param(1.5, -2.0, 3.0, 3.0, id="up, but bad: pushed down"),
        pytest.param(0.5, -2.0, 1.6, 0.0, id="down far enough: stops"),
        pytest.param(0.5, 2.0, -1.0, -1.0, id="down, but good: pulled up"),
    ],
)
def test_clipping_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    what = tokens([log(ratio) - 1.0], old=[-1.0], advantages=[advantage])
    value, gradients, metrics = evaluate(what, CLIP)
    assert value == pytest.approx(loss, rel=1e-5)
    # d ratio / d logp is the ratio itself.
    assert gradients[0] == pytest.approx(gradient, rel=1e-5, abs=1e-7)
    assert metrics["clip_fraction"] == (1.0 if gradient == 0.0 else 0.0)
    assert metrics["ratio_mean"] == pytest.approx(ratio, rel=1e-5)


def test_one_broken_token_does_not_make_an_infinity() -> None:
    what = tokens([-0.1], old=[-500.0], rollout=[-900.0], ref=[-900.0], advantages=[-1.0])
    value, gradients, _ = evaluate(what, TrainerSettings(kl_coef=0.1))
    assert math.isfinite(value)
    assert math.isfinite(gradients[0])


def test_against_plain_autograd() -> None:
    """Everything at once, against the formulas of the module's docstring written down again."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda scale: torch.randn(200, generator=generator) * scale  # noqa: E731 - a helper of this test
    base = -draw(1.0).abs()
    settings = TrainerSettings(dual_clip=4.0, tis_cap=1.5, kl_coef=0.3, entropy_coef=0.2)
    weight = (torch.rand(200, generator=generator) > 0.3) / 200.0
    what = Tokens(
        logprobs=(base + draw(0.5)).requires_grad_(),
        entropy=draw(1.0).requires_grad_(),
        old_logprobs=base,
        rollout_logprobs=base + draw(0.4),
        ref_logprobs=base + draw(0.3),
        advantages=draw(2.0),
        weight=weight,
        bounds=torch.tensor([0, 200], dtype=torch.int32),
    )
    assert what.ref_logprobs is not None
    logprobs = what.logprobs.detach().clone().requires_grad_()
    r = (logprobs - what.old_logprobs).exp()
    a = what.advantages
    surrogate = torch.maximum(-a * r, -a * r.clamp(0.8, 1.28))
    surrogate = torch.where(a < 0, torch.minimum(surrogate, -a * 4.0), surrogate)
    surrogate = surrogate * (what.old_logprobs - what.rollout_logprobs).exp().clamp(max=1.5)
    difference = what.ref_logprobs - logprobs
    expected = (weight * (surrogate + 0.3 * (difference.exp() - 1 - difference) - 0.2 * what.entropy.detach())).sum()
    expected.backward()
    loss, _ = Objective(settings).loss(what)
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(what.logprobs.grad, logprobs.grad, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(what.entropy.grad, -0.2 * weight)


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({}, Need.NOTHING),
        ({"kl_coef": 0.1}, Need.REFERENCE_LOGPROBS),
        ({"advantage": "distillation"}, Need.TEACHER_LOGPROBS),
        ({"loss": "dpo"}, Need.REFERENCE_LOGPROBS | Need.PAIRS),
        ({"old_logprobs": "recompute"}, Need.NOTHING),
        ({"old_logprobs": "recompute", "mini_batches": 2}, Need.OLD_LOGPROBS),
        ({"old_logprobs": "recompute", "mini_batches": 2, "kl_coef": 0.1}, Need.OLD_LOGPROBS | Need.REFERENCE_LOGPROBS),
    ],
)
def test_only_what_is_needed_is_asked_for(settings: dict[str, Any], needs: Need) -> None:
    assert Objective(TrainerSettings(**settings)).needs == needs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "topr", "old_logprobs": "recompute"}, "'topr' makes up for other policies by itself: set .*'none'"),
        ({"kl_coef": 0.1, "kl_placement": "reward"}, "'grpo' knows no rewards of tokens"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Objective(TrainerSettings(**settings))


RNG = np.random.default_rng(3)
LOGITS, REFERENCE = RNG.normal(0, 0.3, 12), RNG.normal(0, 0.3, 12)


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum()


def expected(name: str) -> tuple[float, np.ndarray]:
    """What an estimator comes to over all tokens, each weighing its probability, and its gradient in the logits."""
    logits = torch.tensor(LOGITS, requires_grad=True)
    logp = logits.log_softmax(0)
    values = ESTIMATORS[name](logp - torch.tensor(REFERENCE).log_softmax(0))
    value = (logp.detach().exp() * values).sum()
    value.backward()
    assert logits.grad is not None
    return value.item(), logits.grad.numpy()


P, Q = softmax(LOGITS), softmax(REFERENCE)
REVERSE = float((P * np.log(P / Q)).sum())
# d KL(p || q) / d logits and d KL(q || p) / d logits, by hand.
OF_REVERSE, OF_FORWARD = P * (np.log(P / Q) - REVERSE), P - Q


@pytest.mark.parametrize(
    ("name", "gradient"), [("k1", np.zeros(12)), ("k2", OF_REVERSE), ("k3", OF_FORWARD), ("low_variance", OF_FORWARD)]
)
def test_gradients_on_policy_are_what_is_said_of_them(name: str, gradient: np.ndarray) -> None:
    value, found = expected(name)
    np.testing.assert_allclose(found, gradient, atol=1e-12)
    # k2 is only nearly unbiased.
    assert value == pytest.approx(REVERSE, rel=0.1 if name == "k2" else 1e-9)


@pytest.mark.parametrize(
    ("name", "value", "gradient"),
    [
        ("k1", -np.log(2.0), 1.0),
        ("k2", np.log(2.0) ** 2 / 2, -np.log(2.0)),
        ("k3", 1 - np.log(2.0), -1.0),
        ("low_variance", 1 - np.log(2.0), -1.0),
    ],
)
def test_kl_to_a_reference_by_hand(name: str, value: float, gradient: float) -> None:
    # ref / policy is 2.
    what = tokens([-1.0], ref=[-1.0 + np.log(2.0)], advantages=[0.0])
    loss, gradients, metrics = evaluate(what, TrainerSettings(kl_coef=0.5, kl_estimator=name, correction="none"))
    assert metrics["kl"] == pytest.approx(value, rel=1e-5)
    assert loss == pytest.approx(0.5 * value, rel=1e-5)
    assert gradients[0] == pytest.approx(0.5 * gradient, rel=1e-5)


def test_low_variance_is_bounded_and_the_others_stay_finite() -> None:
    for name, estimator in ESTIMATORS.items():
        found = estimator(torch.tensor([-500.0, -5.0, 0.0, 5.0, 500.0]))
        assert torch.isfinite(found).all()
        assert found[2] == 0.0
        assert name != "low_variance" or found.tolist() == pytest.approx([10, 10, 0, np.exp(-5) + 4, 10])


def test_in_the_reward_it_is_no_part_of_the_loss_but_told_of() -> None:
    what = tokens([-1.0], ref=[-1.0 + np.log(2.0)], advantages=[0.0])
    settings = TrainerSettings(kl_coef=0.5, kl_placement="reward", advantage="reinforce_plus_plus")
    loss, _, metrics = evaluate(what, settings)
    assert loss == 0.0
    assert metrics["kl"] == pytest.approx(1 - np.log(2.0), rel=1e-5)
