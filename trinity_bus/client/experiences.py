"""Payloads: samples of encoded ones; and the experience pipeline, which checks every payload, then publishes all.

::

    payloads --decode--> groups --all good--> topic ``experiences`` --all durable--> Contribute, one for each
                           '--one is bad--> SchemaError; nothing is published

What is published can be read by anyone; it is trained on where the manifest of a FINALIZED batch names it: that of the
batch that is being filled when the coordinator accepts the contribution.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from schemas import ExperienceGroup, ExperiencePiece, Position, Sample
from schemas.codec import DecodeError, SchemaError, decode
from schemas.groups.pieces import join_groups, split_group
from schemas.record import Metrics
from schemas.topics import EXPERIENCES
from trinity_bus.bus import Producer
from trinity_bus.client.tasks import is_of_scheduler


def deserialize_many(payload: bytes) -> list[Sample]:
    """Return the samples in a payload of ``Scheduler.get_payload_results``; DecodeError: it is no experience group.

    Their arrays are views into it. What is of all of them, such as the task, is in what ``decode`` returns of it.
    """
    return list(decode(payload, ExperienceGroup).samples()) if payload else []


class Published(NamedTuple):
    """One task's experiences, as they lie on the log: what ``Contribute`` tells of them."""

    task_id: str
    pieces: list[ExperiencePiece]
    version_min: int
    version_max: int


async def publish(
    producer: Producer, payloads: Sequence[bytes], *, author: str, incarnation: str, max_bytes: int
) -> tuple[Metrics, list[Published]]:
    """Check and publish encoded groups, each of another task, in the name of ``author`` and ``incarnation``.

    A group that is larger than ``max_bytes`` is published in several records. Returns metrics, and where each lies.

    Raises:
        SchemaError: A payload is no experience group, or a sample is larger than a record; nothing was published.
        SendError: Not all are known to be durable. To publish all again is safe: what counts is named by position.
    """
    if not payloads:
        return {}, []
    started = time.perf_counter()
    groups: list[ExperienceGroup] = []
    scheduled: dict[str, list[ExperienceGroup]] = {}
    for number, payload in enumerate(payloads):
        try:
            group = decode(payload, ExperienceGroup)
        except DecodeError as error:
            raise SchemaError(f"payload {number} of {len(payloads)} is no experience group: {error}") from error
        ours = msgspec.structs.replace(group, explorer=author, incarnation=incarnation, batch_type="train")
        if is_of_scheduler(group.batch_id):
            scheduled.setdefault(group.task_id, []).append(ours)
        else:
            groups.append(ours)
    groups += map(_anew, scheduled.values())
    split = [split_group(group, max_bytes) for group in groups]
    checked = time.perf_counter()
    sent = [[await producer.send(EXPERIENCES, piece.task_id, piece) for piece in pieces] for pieces in split]
    published = [
        _published(pieces, list(await asyncio.gather(*positions)))
        for pieces, positions in zip(split, sent, strict=True)
    ]
    done = time.perf_counter()
    metrics = {
        "experience_pipeline/experience_count": float(sum(len(piece) for pieces in split for piece in pieces)),
        "time/experience_pipeline/write": done - checked,
        "time/experience_pipeline/total": done - started,
    }
    return metrics, published


def _anew(parts: Sequence[ExperienceGroup]) -> ExperienceGroup:
    # What a scheduler gave of one task, as a task that nobody has answered; of the same runs, the same.
    whole = join_groups(sorted(parts, key=lambda part: int(part.run_ids.min())))
    return msgspec.structs.replace(whole, task_id=f"{whole.task_id}@{whole.run_ids.min()}")


def _published(pieces: Sequence[ExperienceGroup], positions: Sequence[Position]) -> Published:
    drawn = [(sample.version_min, sample.version_max) for piece in pieces for sample in piece.samples()]
    return Published(
        task_id=pieces[0].task_id,
        pieces=[
            ExperiencePiece(samples=len(piece), position=position)
            for piece, position in zip(pieces, positions, strict=True)
        ],
        version_min=min(low for low, _ in drawn),
        version_max=max(high for _, high in drawn),
    )
