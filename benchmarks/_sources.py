"""Announcements of versions without a coordinator, and where an explorer of a benchmark finds an announced one."""

import secrets

from schemas import Member, ModelVersion
from trinity_bus.weights.transport import Method, Source


def announce(
    version: int,
    checksum: str,
    address: tuple[str, int],
    method: Method,
    *explorers: str,
    epoch: int = 1,
    incarnation: str = "life",
) -> ModelVersion:
    return ModelVersion(
        model="policy",
        version=version,
        step=version,
        method=method,
        epoch=epoch,
        members=[Member(explorer=name, incarnation=incarnation, rank=rank) for rank, name in enumerate(explorers, 1)],
        trainer="trainer-0",
        trainer_incarnation="bench",
        master_address=address[0],
        master_port=address[1],
        checksum=checksum,
        secret=secrets.token_hex(32),
    )


def source(announced: ModelVersion, explorer: str, timeout_s: float = 30.0) -> Source:
    return Source(
        method=announced.method,
        host=announced.master_address,
        port=announced.master_port,
        prefix=f"{announced.trainer_incarnation}/{announced.epoch}/{explorer}",
        version=announced.version,
        checksum=announced.checksum,
        secret=announced.secret or "",
        folder=announced.checkpoint or "",
        timeout_s=timeout_s,
    )
