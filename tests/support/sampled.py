"""Tests with many cases: ``make test`` runs a sample of them, and ``make test-all`` all."""

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

SEED = int(os.environ.get("SAMPLE_SEED", "0"))
"""Draws the sample; each process of a session must draw the same."""


def sampled(cases: Sequence[Any], count: int) -> list[Any]:
    """Parameters of a test with one argument, of which ``count`` are drawn for each change."""
    drawn = random.Random(SEED).sample(range(len(cases)), count)  # noqa: S311 - no secret
    return [case if place in drawn else at_night(case) for place, case in enumerate(cases)]


def at_night(*values: Any) -> Any:
    """Parameters of a test that are not run for each change."""
    return pytest.param(*values, marks=pytest.mark.nightly)
