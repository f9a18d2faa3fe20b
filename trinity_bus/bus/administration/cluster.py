"""How the cluster itself is: copies that lag behind, sizes of topics, disks, ends of certificates.

Brokers tell all of it to whoever may ask, so no other program has to run beside them. What one may not ask is absent
from the answer, and said once in the log: disks and sizes need ``Describe`` on the cluster.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code

from schemas.topic import Topic
from trinity_bus.bus.administration.certificates import file_expiries, shown_expiry
from trinity_bus.bus.administration.requests import describe_log_dirs
from trinity_bus.bus.client.connection import kafka_errors
from trinity_bus.bus.client.internals import ask
from trinity_bus.bus.topics.growth import partitions_of
from trinity_bus.config import KafkaSettings

log = logging.getLogger(__name__)

# Kafka's own topics, without which no transaction and no position is kept
OF_THE_BROKERS = ("__consumer_offsets", "__transaction_state")


@dataclass(frozen=True, slots=True)
class Disk:
    size: int
    free: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    # Topics are named without the namespace.
    # topic to its partitions of which not every copy is up to date
    under_replicated: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)  # topic to its bytes, one copy of each partition
    disks: Mapping[str, Disk] = field(default_factory=dict)  # ``broker 1 /var/lib/kafka`` to what that disk has
    # what shows or holds a certificate, to the end of it in seconds since the epoch
    certificates: Mapping[str, float] = field(default_factory=dict)


def under_replicated(described: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, int]:
    """Partitions that lack a copy, by topic; ``names``: name on the cluster to the one to tell, no other topics."""
    return {
        names[topic["topic"]]: sum(len(p["isr"]) < len(p["replicas"]) for p in topic["partitions"])
        for topic in described
        if topic["error_code"] == 0 and topic["topic"] in names
    }


def partition_sizes(answers: Sequence[Any]) -> dict[tuple[str, int], int]:
    """``(name on the cluster, partition)`` to the bytes of its largest copy, from the brokers' answers."""
    sizes: dict[tuple[str, int], int] = {}
    for answer in answers:
        for code, _, topics, *_ in answer.results:
            if code == 0:
                for name, partitions, _ in topics:
                    for number, size, _, is_future, _ in partitions:
                        if not is_future:
                            sizes[name, number] = max(size, sizes.get((name, number), 0))
    return sizes


class ClusterObserver:
    def __init__(self, admin: AIOKafkaAdminClient, settings: KafkaSettings, topics: Sequence[Topic]) -> None:
        self._admin = admin
        self._settings = settings
        self._names = {topic.full_name(settings.namespace): topic for topic in topics}
        self._said: set[str] = set()

    async def look(self) -> ClusterState:
        with kafka_errors("ask how the cluster is"):
            brokers = (await self._admin.describe_cluster())["brokers"]
            told = {full: topic.name for full, topic in self._names.items()} | {name: name for name in OF_THE_BROKERS}
            # All that this user sees: to ask for one that is not there by its name would be an error.
            replicas = under_replicated(await self._admin.describe_topics(), told)
            answers = await self._log_dirs([broker["node_id"] for broker in brokers])
        totals: Counter[str] = Counter()
        for (topic, _), size in self._sizes(answers).items():
            totals[topic] += size
        return ClusterState(
            under_replicated=replicas,
            sizes=totals,
            disks={
                f"broker {node} {path}": Disk(size, free)
                for node, answer in answers.items()
                for code, path, _, size, free, *_ in answer.results
                if code == 0 and size >= 0
            },
            certificates=await self._certificates(brokers),
        )

    async def partition_sizes(self) -> dict[tuple[str, int], int]:
        """``(topic, partition)`` to the bytes of its largest copy; nothing where this user may not know."""
        with kafka_errors("find the sizes of topics"):
            brokers = (await self._admin.describe_cluster())["brokers"]
            return self._sizes(await self._log_dirs([broker["node_id"] for broker in brokers]))

    def _sizes(self, answers: Mapping[int, Any]) -> dict[tuple[str, int], int]:
        found = partition_sizes(list(answers.values()))
        return {(self._names[name].name, number): size for (name, number), size in found.items()}

    async def _log_dirs(self, nodes: Sequence[int]) -> dict[int, Any]:
        growing = [name for name, topic in self._names.items() if topic.grows]
        described = await self._admin.describe_topics(growing) if growing else []
        known = {topic["topic"]: topic["partitions"] for topic in described}
        request = describe_log_dirs(
            {name: list(partitions_of(topic, known.get(name))) for name, topic in self._names.items()}
        )
        answers: dict[int, Any] = {}
        for node in nodes:
            try:
                answer = await ask(self._admin, request, node)
            except (TimeoutError, KafkaError, IncompatibleBrokerVersion, NotImplementedError) as error:
                self._say_once(f"broker {node} tells nothing of its disks: {error or type(error).__name__}")
                continue
            if answer.error_code:
                self._say_once(
                    f"sizes of topics and disks are not told to this user ({for_code(answer.error_code).__name__}): "
                    "`trinity-bus access apply` gives the right, Describe on the cluster"
                )
                continue
            answers[node] = answer
        return answers

    async def _certificates(self, brokers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        found: dict[str, float] = {}
        if not self._settings.security_protocol.endswith("SSL"):
            return found
        for broker in brokers:
            place = f"broker {broker['host']}:{broker['port']}"
            try:
                found[place] = await shown_expiry(broker["host"], broker["port"], self._settings.request_timeout_s)
            except (OSError, ValueError) as error:
                self._say_once(f"the end of the certificate of {place} is not known: {error or type(error).__name__}")
        for name in ("ssl_cafile", "ssl_certfile"):
            path = getattr(self._settings, name)
            if path is None:
                continue
            try:
                # The first is the client's own; of authorities one that still holds is enough.
                ends = await asyncio.to_thread(file_expiries, path)
                found[name] = ends[0] if name == "ssl_certfile" else max(ends)
            except (OSError, ValueError, IndexError) as error:
                self._say_once(f"the end of the certificate in {path} is not known: {error}")
        return found

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            log.warning("%s", line)
