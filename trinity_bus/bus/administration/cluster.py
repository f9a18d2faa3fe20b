"""How the cluster itself is: copies that lag behind, sizes of topics, disks, ends of certificates.

Brokers tell all of it to whoever may ask, so no other program has to run beside them. What one may not ask is absent
from the answer, and said once in the log: disks and sizes need ``Describe`` on the cluster.

Certificates are those that brokers show, and those in this process's files. Python's own parser tells the end only of a
certificate that it has verified, and one that has ended is not verified any more, which is when it must be told. So the
one field is read here, out of the certificate's DER (RFC 5280, 4.1): ``SEQUENCE { tbs SEQUENCE { [0] version, serial,
algorithm, issuer, validity SEQUENCE { begin, end }, ... } ... }``.
"""

import asyncio
import logging
import re
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code

from schemas.topic import Topic
from trinity_bus import awake
from trinity_bus.bus.administration.requests import describe_log_dirs
from trinity_bus.bus.client.connection import kafka_errors
from trinity_bus.bus.client.internals import ask
from trinity_bus.bus.partitioning import partitions_of
from trinity_bus.config import KafkaSettings

_SEQUENCE = 0x30
_VERSION = 0xA0
_UTC_TIME = 0x17
_GENERALIZED_TIME = 0x18
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAX_FILE_BYTES = 4 << 20


def expiry(der: bytes) -> float:
    """Return when a certificate ends, in seconds since the epoch. Raises ValueError: it is no certificate."""
    certificate, _ = _element(der, 0, _SEQUENCE)
    tbs, _ = _element(certificate, 0, _SEQUENCE)
    at = 0
    if tbs[:1] == bytes([_VERSION]):
        _, at = _element(tbs, at)
    for _ in ("serial", "algorithm", "issuer"):
        _, at = _element(tbs, at)
    validity, _ = _element(tbs, at, _SEQUENCE)
    _, at = _element(validity, 0)
    if at >= len(validity):
        raise ValueError("no certificate: it has no end")
    if (kind := validity[at]) not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"no certificate: its end is an element of kind {kind:#x}")
    end, _ = _element(validity, at)
    try:
        text = end.decode("ascii")
        if kind == _UTC_TIME:
            # Two digits of a year: 50 and more are of the last century.
            text = ("19" if int(text[:2]) >= 50 else "20") + text
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise ValueError(f"no certificate: its end cannot be read ({error})") from error


def _element(data: bytes, at: int, kind: int | None = None) -> tuple[bytes, int]:
    # The content of the element at this place, and where the next one begins.
    if at + 2 > len(data) or (kind is not None and data[at] != kind):
        raise ValueError(f"no certificate: unexpected content at byte {at}")
    size, begin = data[at + 1], at + 2
    if size & 0x80:
        digits = size & 0x7F
        if not 1 <= digits <= 4:
            raise ValueError(f"no certificate: unexpected length at byte {at}")
        size, begin = int.from_bytes(data[begin : begin + digits]), begin + digits
    if begin + size > len(data):
        raise ValueError(f"no certificate: it ends within the element at byte {at}")
    return data[begin : begin + size], begin + size


def file_expiries(path: Path) -> list[float]:
    """Return when each certificate of a PEM file ends, in the file's order. Raises OSError or ValueError."""
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_MAX_FILE_BYTES)
    return [expiry(ssl.PEM_cert_to_DER_cert(found)) for found in _PEM.findall(text)]


async def shown_expiry(host: str, port: int, timeout_s: float) -> float:
    """Return when the certificate ends that a server shows. Nothing is sent to it, nothing of it is trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # One that has ended must be seen too; this connection carries nothing.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with awake.timeout(timeout_s):
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    if not der:
        raise ValueError(f"{host}:{port} shows no certificate")
    return expiry(der)


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
