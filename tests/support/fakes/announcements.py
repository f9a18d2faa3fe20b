"""Versions as a coordinator announces them, for whoever only reads of them: nobody is at their address."""

from typing import Any

from schemas import Member, ModelVersion


def announced(version: int, *explorers: str, incarnation: str = "life", **changes: Any) -> ModelVersion:
    """A version for these explorers, whose incarnations all have the same name."""
    members = [Member(explorer=name, incarnation=incarnation, rank=rank) for rank, name in enumerate(explorers, 1)]
    values: dict[str, Any] = {
        "model": "policy",
        "version": version,
        "step": version,
        "method": "gloo",
        "epoch": 1,
        "members": members,
        "trainer": "trainer-0",
        "trainer_incarnation": "life",
        "master_address": "127.0.0.1",
        "master_port": 1,
        "checksum": "",
    }
    return ModelVersion(**values | changes)
