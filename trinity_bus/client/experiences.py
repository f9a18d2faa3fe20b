"""Payloads: samples of encoded ones; and the experience pipeline, which checks every payload, then publishes all.

::

    payloads --decode--> groups --all good--> topic ``experiences`` --all durable--> metrics
                           '--one is bad--> SchemaError; nothing is published

What is published can be read by anyone; it is trained on where the manifest of a FINALIZED batch names it.
"""

import asyncio
import time
from collections.abc import Sequence

from schemas import ExperienceGroup, Sample
from schemas.codec import DecodeError, SchemaError, decode
from schemas.record import Metrics
from schemas.topics import EXPERIENCES
from trinity_bus.bus import Producer


def deserialize_many(payload: bytes) -> list[Sample]:
    """Return the samples in a payload, as ``Scheduler.get_payload_results`` gives it, in order; of none, none.

    Their arrays are views into it. What is of all of them, such as the task, is in the ``ExperienceGroup`` that
    ``decode`` returns.

    Raises:
        DecodeError: It is no experience group.
    """
    return list(decode(payload, ExperienceGroup).samples()) if payload else []


async def publish(producer: Producer, payloads: Sequence[bytes]) -> Metrics:
    """Check and publish experiences.

    Args:
        producer: Started.
        payloads: Each one ``ExperienceGroup`` as it stands on the log.

    Returns:
        ``experience_pipeline/experience_count``, the samples in all groups; ``time/experience_pipeline/write`` and
        ``/total``, seconds. Empty for no payloads.

    Raises:
        SchemaError: A payload is no experience group; nothing was published.
        SendError: Not all are known to be durable. To publish all of them again is safe: what counts is named by
            position.
    """
    if not payloads:
        return {}
    started = time.perf_counter()
    groups: list[ExperienceGroup] = []
    for number, payload in enumerate(payloads):
        try:
            groups.append(decode(payload, ExperienceGroup))
        except DecodeError as error:
            raise SchemaError(f"payload {number} of {len(payloads)} is no experience group: {error}") from error
    checked = time.perf_counter()
    sent = [
        await producer.send_raw(EXPERIENCES, group.task_id, payload)
        for group, payload in zip(groups, payloads, strict=True)
    ]
    await asyncio.gather(*sent)
    done = time.perf_counter()
    return {
        "experience_pipeline/experience_count": float(sum(len(group) for group in groups)),
        "time/experience_pipeline/write": done - checked,
        "time/experience_pipeline/total": done - started,
    }
