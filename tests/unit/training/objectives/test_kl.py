"""Estimators of the KL divergence: by hand, and over a whole vocabulary, where the divergence itself is known."""

import numpy as np
import pytest
import torch

from tests.support.training.objectives import evaluate, tokens
from trinity_bus.config import TrainerSettings
from trinity_bus.training.objectives.kl import ESTIMATORS

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
