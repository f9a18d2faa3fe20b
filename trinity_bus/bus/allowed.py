"""What this user may do with topics, asked of the brokers and tried on nothing.

What a user may do with a transactional id cannot be asked: to try it would end whoever has it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient

from trinity_bus.bus.access import Operation
from trinity_bus.bus.connection import kafka_errors
from trinity_bus.bus.describe_topics import DescribeTopics
from trinity_bus.bus.internals import ask

_NOT_TOLD: Final = -(2**31)  # in place of rights, by a broker that was not asked for them


async def allowed(admin: AIOKafkaAdminClient, topics: Sequence[str]) -> dict[str, frozenset[Operation]]:
    """Return what this user may do with each of some topics (full names); those that it may not see are left out."""
    if not topics:
        return {}
    with kafka_errors("ask for rights"):
        answer = await ask(admin, DescribeTopics(topics, rights=True))
    return {
        name: frozenset(_operations(bits))
        for error, name, _, _, _, bits, _ in answer.topics
        if not error and bits != _NOT_TOLD
    }


def _operations(bits: int) -> Iterator[Operation]:
    return (operation for operation in Operation if bits >> operation & 1)
