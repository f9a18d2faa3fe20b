"""Which log this is: the id of the cluster, and the id that a topic got when it was made.

A topic that was deleted and made anew has the same name and other records; its id tells.
"""

from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code

from trinity_bus.bus.describe_topics import DescribeTopics
from trinity_bus.bus.internals import ask


@dataclass(frozen=True, slots=True)
class LogIdentity:
    cluster: str  # Kafka's id of the cluster
    topic: str  # its id of the topic, a UUID


async def identity_of(admin: AIOKafkaAdminClient, topic: str) -> LogIdentity:
    """Ask a broker which log this is; ``topic`` is a full name. Raises aiokafka.errors.KafkaError: it does not say."""
    answer: Any = await ask(admin, DescribeTopics([topic]))
    (found,) = answer.topics
    error_code, _, topic_id, *_ = found
    if error_code:
        raise for_code(error_code)(f"describe topic {topic}")
    return LogIdentity(cluster=answer.cluster_id or "", topic=str(topic_id))
