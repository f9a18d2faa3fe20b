"""Topics: created explicitly, with what their records need, and checked where they exist already.

Automatic creation by the broker is never relied on: a misspelt topic would silently become one with a single partition.

What is acknowledged must survive the loss of a broker where the cluster has the brokers for that::

    copies of a partition           1     2     3 or more
    that must have a record         1     1     2              min.insync.replicas, at creation
    one broker is lost          all lost  kept  kept, goes on
    a leader that lags behind             never                unclean.leader.election.enable=false, at creation

Both are checked of topics that exist, since another hand may have made or changed them. That a topic has fewer copies
than the brokers would allow is said in the log, and no reason to stop: what is there works.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code

from schemas.topic import Topic
from schemas.topics import TOPICS
from trinity_bus import awake
from trinity_bus.bus.client.connection import kafka_errors, translated
from trinity_bus.bus.client.internals import client_of
from trinity_bus.bus.read.consumers import CREATION_S
from trinity_bus.config import KafkaSettings, env_name
from trinity_bus.errors import BusError, TopicMismatchError, UnknownTopicError

_AGAIN_S = 0.2
_TIMED_OUT = 7
_NOT_ALLOWED = 29
_MAY_NOT = (_NOT_ALLOWED, 31)  # to change a topic: refused for the topic, or for the cluster
_ALREADY_EXISTS = 36
_CLEANUP = "cleanup.policy"
_MAX_MESSAGE = "max.message.bytes"
_BUDGET = "retention.bytes"
_KEPT = ("message.timestamp.type", "retention.ms", _BUDGET)
_OF_TOPIC = 1  # where a setting comes from, by Kafka's numbers: from the topic itself
_MIN_IN_SYNC = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"
_NAMED = 10  # other namespaces, where one has no topics
_COPIES = 3  # of each partition: one broker may be lost while another restarts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    partitions: int
    cleanup: str
    max_message_bytes: int
    copies: int = 1  # of the partition that has the fewest
    min_in_sync: int = 1
    unclean: bool = False  # whether a replica that lags behind may become leader
    kept: Mapping[str, str] = field(default_factory=dict)  # of ``_KEPT``, what it has
    own: Mapping[str, str] = field(default_factory=dict)  # what was set for this topic alone


def config_of(topic: Topic, settings: KafkaSettings) -> dict[str, str]:
    return topic.config() | {_MAX_MESSAGE: str(settings.max_message_bytes(topic))}


def outdated(topic: Topic, found: ExistingTopic) -> dict[str, str]:
    """Return what of an existing topic keeps its records for another time than it should, with what it should be."""
    # A budget of bytes that an operator has made larger stays.
    wanted = topic.config()
    return {
        name: wanted[name]
        for name, value in found.kept.items()
        if name in wanted
        and value != wanted[name]
        and not (name == _BUDGET and int(found.own.get(name, -1)) > topic.retention_bytes > 0)
    }


def copies_for(wanted: int | None, brokers: int) -> int:
    """How many copies of each partition a new topic gets; ``wanted`` None leaves it to the number of live brokers."""
    return wanted if wanted is not None else max(1, min(_COPIES, brokers))


def durability(copies: int) -> dict[str, str]:
    """Return a new topic's configuration by which what is acknowledged survives the loss of a broker, where it can."""
    return {_MIN_IN_SYNC: str(_min_in_sync(copies)), _UNCLEAN: "false"}


def _min_in_sync(copies: int) -> int:
    return 2 if copies >= _COPIES else 1


def mismatches(topic: Topic, found: ExistingTopic, max_message_bytes: int) -> list[str]:
    """Return what makes an existing topic unusable for its records; empty if nothing."""
    # Partitions must be equal, unless the topic can grow: see :mod:`trinity_bus.bus.partitioning`.
    wrong = []
    if topic.grows and found.partitions < topic.partitions:
        wrong.append(
            f"it has {found.partitions} partitions and needs {topic.partitions}: `trinity-bus topics grow {topic.name} "
            f"{topic.partitions}`"
        )
    elif not topic.grows and found.partitions != topic.partitions:
        wrong.append(f"it has {found.partitions} partitions and needs exactly {topic.partitions}")
    if found.cleanup != topic.cleanup:
        wrong.append(f"its {_CLEANUP} is {found.cleanup} and must be {topic.cleanup}")
    if found.max_message_bytes < max_message_bytes:
        wrong.append(
            f"its {_MAX_MESSAGE} is {found.max_message_bytes} and must be at least {max_message_bytes}, or "
            f"{env_name('mesh.max_record_mib')} smaller"
        )
    if found.min_in_sync < (least := _min_in_sync(found.copies)):
        wrong.append(
            f"its {_MIN_IN_SYNC} is {found.min_in_sync} and must be {least} with {found.copies} copies, or a record "
            "that is acknowledged is lost with one broker"
        )
    elif found.min_in_sync > found.copies:
        wrong.append(
            f"its {_MIN_IN_SYNC} is {found.min_in_sync} and must not be above its {found.copies} copies, or no record "
            "is ever acknowledged"
        )
    if found.unclean and found.copies > 1:
        wrong.append(
            f"its {_UNCLEAN} is true and must be false, or a replica that lags behind becomes leader and drops what "
            "was acknowledged"
        )
    return wrong


def weaknesses(found: Mapping[str, ExistingTopic], settings: KafkaSettings, brokers: int) -> list[str]:
    """Return what an operator should know of topics that work, in one line each; ``brokers``: that are alive."""
    said = []
    wanted = copies_for(settings.replication_factor, brokers)
    few = [name for name, topic in found.items() if topic.copies < wanted]
    if few:
        said.append(
            f"fewer than {wanted} copies are kept of {', '.join(sorted(few))}, though there are {brokers} brokers: "
            "what these hold is lost with one of them (docs/operations.md, Three brokers)"
        )
    stiff = [name for name, topic in found.items() if 1 < topic.copies == topic.min_in_sync]
    if stiff:
        said.append(
            f"{_MIN_IN_SYNC} equals the number of copies of {', '.join(sorted(stiff))}: nothing can be written there "
            "while one broker is away"
        )
    return said


async def ensure(admin: AIOKafkaAdminClient, settings: KafkaSettings, topics: Sequence[Topic]) -> list[Topic]:
    """Create the topics that are absent and check the others; return those that were created.

    A broker that is gone is no reason to fail: another one is asked, or the same once it is back, for ``outage_s``.
    A user who may not create topics is content with those that are there: an administrator has created them. Those that
    an earlier version has created, to be kept for another time than today, are changed; a user who may not do that says
    so in the log. TopicMismatchError: an existing topic is not what its records need.
    """
    names = {topic.full_name(settings.namespace): topic for topic in topics}
    created: dict[str, None] = {}
    until = awake.now() + settings.outage_s
    while True:
        try:
            brokers, refused = await _create(admin, settings, names, created)
            found = await _described(admin, list(names), refused, settings.outage_s)
            break
        # The client library waits in vain for the broker that has created topics when it last looked, where that one is
        # gone, and ends with an error that is none of its own.
        except (TimeoutError, KafkaError) as error:
            is_lost = isinstance(error, TimeoutError) or error.retriable
            if not is_lost or awake.now() >= until:
                raise translated(error, "create topics") from error
            log.info("%s; asked again", translated(error, "create topics"))
        await asyncio.sleep(_AGAIN_S)
        with kafka_errors("create topics"):
            client_of(admin).check_credentials()
        await client_of(admin).force_metadata_update()
    wrong = [
        f"topic {name} exists but {', '.join(problems)}"
        for name, topic in names.items()
        if (problems := mismatches(topic, found[name], settings.max_message_bytes(topic)))
    ]
    if wrong:
        raise TopicMismatchError(
            f"{'; '.join(wrong)}: change or delete it, or choose another namespace than {settings.namespace!r}"
        )
    await _bring_up_to_date(admin, {name: (topic, found[name]) for name, topic in names.items()})
    for weakness in weaknesses(found, settings, brokers):
        log.warning("%s", weakness)
    return [names[name] for name in created]


async def _create(
    admin: AIOKafkaAdminClient, settings: KafkaSettings, names: Mapping[str, Topic], created: dict[str, None]
) -> tuple[int, set[str]]:
    # Adds those that were absent to ``created``. Returns how many brokers there are, and the names of the topics that
    # this user may not create.
    brokers = len((await admin.describe_cluster())["brokers"])
    copies = copies_for(settings.replication_factor, brokers)
    response = await admin.create_topics(
        [
            NewTopic(
                name,
                num_partitions=topic.partitions,
                replication_factor=copies,
                topic_configs=config_of(topic, settings) | durability(copies),
            )
            for name, topic in names.items()
        ]
    )
    for name, code, message, *_ in response.topic_errors:
        # Of one that takes long it is waited for later.
        if code not in (0, _TIMED_OUT, _NOT_ALLOWED, _ALREADY_EXISTS):
            raise BusError(f"topic {name} cannot be created: {message or for_code(code).__name__}")
    created |= dict.fromkeys(name for name, code, *_ in response.topic_errors if code in (0, _TIMED_OUT))
    return brokers, {name for name, code, *_ in response.topic_errors if code == _NOT_ALLOWED}


async def present(admin: AIOKafkaAdminClient, settings: KafkaSettings, topics: Sequence[Topic]) -> list[Topic]:
    """Return which of these topics there are. Creates none. Raises UnknownTopicError."""
    names = {topic.full_name(settings.namespace): topic for topic in (*TOPICS, *topics)}
    with kafka_errors("look for topics"):
        described = await admin.describe_topics(list(names))
        # What this user may not see is told by whoever reads it.
        found = {topic["topic"] for topic in described if topic["error_code"] != UnknownTopicOrPartitionError.errno}
        if not found:
            raise UnknownTopicError(_no_mesh(settings.namespace, await admin.list_topics()))
    return [topic for topic in topics if topic.full_name(settings.namespace) in found]


def _no_mesh(namespace: str, names: Iterable[str]) -> str:
    ours = {topic.name for topic in TOPICS}
    parts = (name.rpartition(".") for name in names)
    others = sorted({head for head, _, tail in parts if head and tail in ours})
    more = f", and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    there = f"there are {', '.join(others[:_NAMED])}{more}" if others else "no namespace on this broker has any"
    return f"namespace {namespace!r} has no topics ({env_name('mesh.namespace')}): {there}"


async def budgets(admin: AIOKafkaAdminClient, settings: KafkaSettings, topics: Sequence[Topic]) -> dict[str, int]:
    """Return how many bytes a partition of each of these topics may take, by the topic's name; -1 is no limit."""
    names = {topic.full_name(settings.namespace): topic.name for topic in topics}
    with kafka_errors("find the budgets of topics"):
        configs = await _configs(admin, list(names))
    return {names[name]: int(entry[1]) for name, entries in configs.items() for entry in entries if entry[0] == _BUDGET}


async def _bring_up_to_date(admin: AIOKafkaAdminClient, topics: Mapping[str, tuple[Topic, ExistingTopic]]) -> None:
    # A request replaces all that was set for a topic, so what others have set goes along.
    news = {name: outdated(topic, found) for name, (topic, found) in topics.items()}
    changes = {name: dict(topics[name][1].own) | new for name, new in news.items() if new}
    if not changes:
        return
    with kafka_errors("change topics"):
        responses = await admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name, configs) for name, configs in changes.items()]
        )
    for response in responses:
        for code, message, _, name in response.resources:
            if code in _MAY_NOT:
                log.warning(
                    "topic %s was made by an earlier version and needs %s, which this user may not set: run "
                    "`trinity-bus topics create` as one who may",
                    name,
                    ", ".join(f"{key}={value}" for key, value in news[name].items()),
                )
            elif code:
                raise BusError(f"topic {name} cannot be changed: {message or for_code(code).__name__}")
            else:
                log.info("topic %s is kept as today's version keeps it", name)


async def _configs(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, list[Any]]:
    # Entry by entry; without the topics that the broker asked does not know yet.
    configs: dict[str, list[Any]] = {}
    for response in await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names]):
        for code, message, _, name, entries in response.resources:
            if code and code != UnknownTopicOrPartitionError.errno:
                raise BusError(f"topic {name} cannot be described: {message or for_code(code).__name__}")
            if not code:
                configs[name] = entries
    return configs


def _lacking(names: list[str], refused: set[str], timeout_s: float) -> str:
    if refused.issuperset(names):
        return (
            f"topics {', '.join(names)} are not there, or hidden from this user, who may not create them: run "
            "`trinity-bus topics create` as one who may, and `trinity-bus access apply` for the rights of each user"
        )
    return f"topics {', '.join(names)} have no leader after {timeout_s:g} s: is the cluster healthy?"


async def _described(
    admin: AIOKafkaAdminClient, names: list[str], refused: set[str], timeout_s: float
) -> dict[str, ExistingTopic]:
    # Once every partition has a leader. Those ``refused`` this user may not create; they are there, or nobody else is
    # about to create them.
    # Between answers: that a broker is slow to give one says nothing about topics.
    until = awake.now() + (min(timeout_s, CREATION_S) if refused else timeout_s)
    # A created topic reaches each broker's metadata a moment later; nothing tells when. The second question may go to
    # another broker than the first.
    while True:
        described = await admin.describe_topics(names)
        copies = {
            topic["topic"]: [len(partition["replicas"]) for partition in topic["partitions"]]
            for topic in described
            if topic["error_code"] == 0 and all(p["leader"] >= 0 for p in topic["partitions"])
        }
        configs: dict[str, list[Any]] = {}
        if len(copies) == len(names):
            configs = await _configs(admin, names)
            copies = {name: of_each for name, of_each in copies.items() if name in configs}
        if len(copies) == len(names):
            break
        if awake.now() >= until:
            raise BusError(_lacking(sorted(set(names) - set(copies)), refused, timeout_s))
        await asyncio.sleep(0.05)
    everything = {name: {entry[0]: entry[1] for entry in entries} for name, entries in configs.items()}
    return {
        name: ExistingTopic(
            partitions=len(copies[name]),
            cleanup=everything[name][_CLEANUP],
            max_message_bytes=int(everything[name][_MAX_MESSAGE]),
            copies=min(copies[name]),
            min_in_sync=int(everything[name][_MIN_IN_SYNC]),
            unclean=everything[name][_UNCLEAN] == "true",
            kept={key: everything[name][key] for key in _KEPT},
            own={entry[0]: entry[1] for entry in configs[name] if entry[3] == _OF_TOPIC},
        )
        for name in names
    }
