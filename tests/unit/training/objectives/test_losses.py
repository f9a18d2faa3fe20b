"""Losses and their gradients, against the formulas of their sources in plain numpy, sequence by sequence."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.training.objectives import evaluate, tokens
from trinity_bus.config import TrainerSettings

type Array = NDArray[np.float64]
LENGTHS = (3, 1, 5, 4)
BOUNDS = [0, *np.cumsum(LENGTHS).tolist()]


class Drawn:
    """Random tokens of sequences with advantages of both signs; some are masked."""

    def __init__(self, seed: int) -> None:
        rng, n = np.random.default_rng(seed), BOUNDS[-1]
        self.logprobs = -rng.exponential(1.0, n)
        self.old = self.logprobs + rng.normal(0, 0.4, n)
        self.rollout = self.old + rng.normal(0, 0.3, n)
        self.advantages = np.repeat([1.5, -0.5, -2.0, 0.7], LENGTHS)
        self.mask = rng.random(n) > 0.25
        self.mask[np.array(BOUNDS[:-1])] = True
        self.weight = self.mask / self.mask.sum()

    def of_sequences(self, values: Array, reduce: Callable[[Array], float]) -> Array:
        """For each token what the trained ones of its sequence come to."""
        parts = zip(np.split(values, BOUNDS[1:-1]), np.split(self.mask, BOUNDS[1:-1]), strict=True)
        return np.concatenate([np.full(len(part), reduce(part[mask])) for part, mask in parts])

    def check(self, settings: TrainerSettings, losses: Array, gradients: Array) -> dict[str, float]:
        """Compare loss and gradient with those of each token."""
        what = tokens(
            self.logprobs.tolist(),
            old=self.old.tolist(),
            rollout=self.rollout.tolist(),
            advantages=self.advantages.tolist(),
            weight=self.weight.tolist(),
            bounds=BOUNDS,
        )
        value, found, metrics = evaluate(what, settings)
        assert value == pytest.approx((losses * self.weight).sum(), rel=1e-4)
        np.testing.assert_allclose(found, gradients * self.weight, rtol=1e-4, atol=1e-7)
        return metrics


drawn = pytest.mark.parametrize("drawn", [Drawn(0), Drawn(1), Drawn(2)], ids="012")


def cispo(one: Drawn) -> tuple[Array, Array]:
    """Clips weights, and leaves every token its gradient."""
    weights = np.minimum(np.exp(one.logprobs - one.old), 1.28)
    return -weights * one.advantages * one.logprobs, -weights * one.advantages


def topr(one: Drawn) -> tuple[Array, Array]:
    """Tapers what went badly by the whole sequence."""
    ratios = one.of_sequences(one.logprobs - one.rollout, lambda x: float(np.exp(x.sum())))
    weights = np.where(one.advantages >= 0, 1.0, np.minimum(ratios, 1.0))
    return -weights * one.advantages * one.logprobs, -weights * one.advantages


def gspo(one: Drawn) -> tuple[Array, Array]:
    """Clips whole sequences, each token of which pulls with the sequence's ratio."""
    ratio, a = one.of_sequences(one.logprobs - one.old, lambda x: float(np.exp(x.mean()))), one.advantages
    clipped = np.clip(ratio, 0.8, 1.28)
    return -np.minimum(ratio * a, clipped * a), np.where(ratio * a <= clipped * a, -ratio * a, 0.0)


def decoupled(one: Drawn) -> tuple[Array, Array]:
    """Clips to the proximal policy, and weighs by the behaviour policy."""
    ratio, a, behaviour = np.exp(one.logprobs - one.old), one.advantages, np.exp(one.old - one.rollout)
    clipped = np.clip(ratio, 0.8, 1.28)
    active = ratio * a <= clipped * a
    return -behaviour * np.minimum(ratio * a, clipped * a), np.where(active, -behaviour * ratio * a, 0.0)


@drawn
@pytest.mark.parametrize(
    ("settings", "formula"),
    [
        pytest.param({"loss": "cispo"}, cispo, id="cispo"),
        pytest.param({"loss": "topr"}, topr, id="topr"),
        pytest.param({"loss": "gspo"}, gspo, id="gspo"),
        pytest.param(
            {"loss": "opmd", "opmd_tau": 3.0},
            lambda one: (-one.advantages * one.logprobs / 4, -one.advantages / 4),
            id="opmd",
        ),
        pytest.param({"old_logprobs": "recompute", "correction": "unbounded"}, decoupled, id="decoupled ppo"),
    ],
)
def test_losses_and_gradients(
    drawn: Drawn, settings: dict[str, Any], formula: Callable[[Drawn], tuple[Array, Array]]
) -> None:
    metrics = drawn.check(TrainerSettings(**{"correction": "none", **settings}), *formula(drawn))
    if formula is cispo:
        clipped = (np.exp(drawn.logprobs - drawn.old) > 1.28) * drawn.weight
        assert metrics["clip_fraction"] == pytest.approx(clipped.sum(), rel=1e-5)


@drawn
@pytest.mark.parametrize("correction", ["truncated", "masked", "icepop", "unbounded"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_corrections_of_tokens_and_of_sequences(drawn: Drawn, correction: str, level: str) -> None:
    reduce: dict[str, Callable[[Array], float]] = {"sequence": np.sum, "geometric": np.mean}
    log_ratio = drawn.old - drawn.rollout
    weights = np.exp(log_ratio if level == "token" else drawn.of_sequences(log_ratio, reduce[level]))
    limited = {
        "truncated": weights > 1.3,
        "masked": weights > 1.3,
        "icepop": (weights > 1.3) | (weights < 0.8),
        "unbounded": np.zeros(len(weights), bool),
    }[correction]
    corrected = np.where(limited, 1.3 if correction == "truncated" else 0.0, weights)
    settings = TrainerSettings(
        loss="opmd", correction=correction, correction_level=level, tis_cap=1.3, tis_floor=0.8, opmd_tau=1.0
    )
    advantages = drawn.advantages / 2
    metrics = drawn.check(settings, -corrected * advantages * drawn.logprobs, -corrected * advantages)
    assert metrics["importance_limited_fraction"] == pytest.approx((limited * drawn.weight).sum(), abs=1e-6)
    assert metrics["importance_weight_mean"] == pytest.approx((weights * drawn.weight).sum(), rel=1e-4)


def test_the_cases_have_something_to_limit() -> None:
    assert any((np.exp(one.logprobs - one.old) > 1.28).any() for one in (Drawn(0), Drawn(1), Drawn(2)))
    assert any((np.exp(one.old - one.rollout) < 0.8).any() for one in (Drawn(0), Drawn(1), Drawn(2)))
