"""Tests with many cases: ``make test`` runs a sample of them, and ``make test-all`` all."""

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

SEED = int(os.environ.get("SAMPLE_SEED", "0"))
"""Draws the sample; each process of a session must draw the same."""


def sampled(cases: Sequence[Any], count: int) -> list[Any]:
    """Parameters of a test, of which ``count`` are drawn for each change: ``pytest.param`` or the one argument."""
    drawn = random.Random(SEED).sample(range(len(cases)), count)  # noqa: S311 - no secret
    named = [case if hasattr(case, "marks") else pytest.param(case) for case in cases]
    return [case if place in drawn else at_night(*case.values, name=case.id) for place, case in enumerate(named)]


def at_night(*values: Any, name: Any = None) -> Any:
    """Parameters of a test that are not run for each change."""
    return pytest.param(*values, marks=pytest.mark.nightly, id=name)
