"""Versions as a coordinator announces them, for whoever only reads of them: nobody is at their address."""

from typing import Any

from benchmarks._records import NOWHERE, announce
from schemas import ModelVersion


def announced(version: int, *explorers: str, incarnation: str = "life", **changes: Any) -> ModelVersion:
    """A version for these explorers, whose incarnations all have the same name."""
    made = announce(version, "", NOWHERE, "gloo", *explorers, incarnation=incarnation)
    return made.model_copy(update={"trainer_incarnation": "life", "secret": None, **changes})
