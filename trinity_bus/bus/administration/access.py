"""Who may do what on the log: the rights of each role, as data. Pure.

Each role of a mesh is one user of the cluster, ``<namespace>.<role>``. What it may read and write is what
``schemas.topics`` says that it reads and writes; here is added what Kafka asks for besides::

    everyone        sees names, partitions and settings of the mesh's topics, to check them at its start
    coordinator     commits its inputs in its group, in transactions of its own id; deletes what nobody needs any more
                    of the topics that keep records until they are read or trained; sees sizes and disks of the cluster
    taskset         writes in transactions, each taskset under an id of its own
    operator        sees how far the coordinator's group has come: the lag in `trinity-bus status`
    admin           creates, changes and empties the mesh's topics, and moves groups and transactions; nothing else

Nobody may create a topic but ``admin``, and nobody has a right on another namespace. Rights are given to literal names,
because ``team`` is the beginning of ``team.b`` too; only the ids of tasksets are given by their beginning.

``trinity-bus access apply`` makes a cluster agree with this table: see ``access_admin``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import get_args

from schemas.topic import Role
from schemas.topics import TOPICS

ROLES: tuple[Role, ...] = get_args(Role.__value__)
ADMIN = "admin"
USERS: tuple[str, ...] = (*ROLES, ADMIN)
CLUSTER = "kafka-cluster"


class Kind(IntEnum):
    # by Kafka's numbers
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(IntEnum):
    """Kafka's numbers. Reading and writing include describing."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


@dataclass(frozen=True, slots=True, order=True)
class Right:
    kind: Kind
    name: str  # of the topic, group or transactional id
    operation: Operation
    prefix: bool = False  # whether ``name`` is only what it begins with


_SEE = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_RUN = (
    *(Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER),
    *(Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
)


def user_name(namespace: str, user: str) -> str:
    return f"{namespace}.{user}"


def rights(namespace: str, user: str) -> frozenset[Right]:
    found = set(_admin(namespace) if user == ADMIN else _on_topics(namespace, user))
    coordinator = f"{namespace}.coordinator"
    if user == "coordinator":
        found |= {Right(Kind.TOPIC, t.full_name(namespace), Operation.DELETE) for t in TOPICS if t.keep_ms is not None}
        found |= {
            Right(Kind.GROUP, coordinator, Operation.READ),
            Right(Kind.TRANSACTIONAL_ID, coordinator, Operation.WRITE),
            Right(Kind.CLUSTER, CLUSTER, Operation.DESCRIBE),
        }
    elif user == "taskset":
        found.add(Right(Kind.TRANSACTIONAL_ID, f"{namespace}.taskset.", Operation.WRITE, prefix=True))
    elif user == "operator":
        found.add(Right(Kind.GROUP, coordinator, Operation.DESCRIBE))
    return frozenset(found)


def _on_topics(namespace: str, role: str) -> Iterator[Right]:
    for topic in TOPICS:
        name = topic.full_name(namespace)
        yield from (Right(Kind.TOPIC, name, operation) for operation in _SEE)
        if role in topic.readers:
            yield Right(Kind.TOPIC, name, Operation.READ)
        if role in topic.writers:
            yield Right(Kind.TOPIC, name, Operation.WRITE)


def _admin(namespace: str) -> Iterator[Right]:
    yield from (Right(Kind.TOPIC, t.full_name(namespace), operation) for t in TOPICS for operation in _RUN)
    for operation in (Operation.READ, Operation.DESCRIBE, Operation.DELETE):
        yield Right(Kind.GROUP, f"{namespace}.coordinator", operation)
    for name, prefix in ((f"{namespace}.coordinator", False), (f"{namespace}.taskset.", True)):
        yield Right(Kind.TRANSACTIONAL_ID, name, Operation.WRITE, prefix)
        yield Right(Kind.TRANSACTIONAL_ID, name, Operation.DESCRIBE, prefix)
