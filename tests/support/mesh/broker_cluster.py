"""Several Kafka brokers as one cluster, each a process that can be killed: what the embedded broker is one of.

Every node is broker and controller, so a cluster of three bears the loss of any one; with ``controllers=1`` only the
last one is, and goes on telling who is in sync when all the others are lost.

::

    node: RUNNING --kill(): SIGKILL------> ENDED --start()--> RUNNING, on the same data and port
             |-----end(): SIGTERM--------> ENDED
             |-----fill(): its disk is full------> ENDED by itself --start()--> RUNNING, its disk as it was before
             '-----pause(): SIGSTOP------> silent, its connections open --resume()--> RUNNING
"""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from tests.support.mesh.mesh import own_broker
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.waiting import wait_until
from trinity_bus.broker import java, layout
from trinity_bus.broker.formatting import format_folder
from trinity_bus.broker.jars import install
from trinity_bus.broker.layout import cache_dir
from trinity_bus.broker.node import archive_options, ask
from trinity_bus.bus.client.connection import administrator
from trinity_bus.config import KafkaSettings
from trinity_bus.runtime.process import Child, tail

CLUSTER_ID = "trinity-bus-test-clust"
HEAP_MIB = 192
LIMIT_S = 180.0
TRANSACTIONS = "__transaction_state"
TRANSACTION_PARTITIONS = 4
"""As the embedded broker has them."""


class BrokerCluster:
    """Brokers, formatted and not started. Has what tests ask of an embedded broker: any of the nodes is meant then.

    The last ``controllers`` of them are controllers, all where absent.
    """

    size: Final = 3
    nodes: Final = range(1, size + 1)

    def __init__(self, root: Path, *, controllers: int = size) -> None:
        found = quiet_ports(2 * self.size)
        self.ports = found[: self.size]
        self.folders = [layout.Folder(root / f"broker-{node}") for node in self.nodes]
        self.children: dict[int, Child] = {}
        """Node id, from 1, to its process."""
        self._turn = 1
        """The node that is meant where none is named."""
        self._cache = cache_dir(own_broker(root))
        self._classpath = install(self._cache)
        quorum = dict(list(zip(self.nodes, found[self.size :], strict=True))[-controllers:])
        for node in self.nodes:
            self._format(node, quorum)

    # -- as the embedded broker --------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def folder(self) -> layout.Folder:
        """Of the node whose turn it is."""
        return self.folders[self._turn - 1]

    @property
    def pid(self) -> int | None:
        """Of the node whose turn it is to be killed."""
        return self.children[self._turn].pid if self._turn in self.children else None

    def kafka_settings(self, base: KafkaSettings | None = None) -> KafkaSettings:
        return (base or KafkaSettings()).model_copy(update={"bootstrap_servers": self.bootstrap_servers})

    def poll(self) -> int | None:
        """Exit status of a node that has ended; None while all run."""
        return next((code for child in self.children.values() if (code := child.poll()) is not None), None)

    def start(self) -> "BrokerCluster":
        for node in self.nodes:
            if node not in self.children or self.children[node].poll() is not None:
                self._turn = node % self.size + 1
                self._launch(node)
        try:
            wait_until(lambda: self.alive() == self.size, f"cluster of {self.size}", LIMIT_S, 0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}: {tail(self.folders[0].server_log, 20)}") from None
        return self

    def stop(self) -> None:
        """End all of them, by force: nobody reads what they hold any more."""
        while self.children:
            self.children.popitem()[1].kill()

    # -- each of them ------------------------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        self.children.pop(node).kill()

    def end(self, node: int) -> None:
        self.children.pop(node).stop(LIMIT_S)

    def pause(self, node: int) -> None:
        os.kill(self.children[node].pid, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        os.kill(self.children[node].pid, signal.SIGCONT)

    def fill(self, node: int) -> None:
        """Leave it no room: no file of it can grow any more; once it is started anew, it has room again.

        A write then fails with EFBIG rather than ENOSPC, for Java an ``IOException`` as well, for which Kafka gives up
        its folder.
        """
        resource.prlimit(self.children[node].pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def alive(self) -> int:
        """Brokers that the cluster counts as alive, by the word of that one of them that knows of the fewest."""
        counts = []
        for node in self.children:
            with contextlib.suppress(OSError):
                counts.append(ask(self.ports[node - 1]).brokers)
        return min(counts, default=0) if len(counts) == len(self.children) else 0

    # -- what it holds -----------------------------------------------------------------------------------------------

    async def leader(self, topic: str, partition: int) -> int:
        """Node that leads a partition, by its topic's name on the cluster."""
        async with self._administrator() as admin:
            [described] = await admin.describe_topics([topic])
            [found] = [one["leader"] for one in described["partitions"] if one["partition"] == partition]
            return int(found)

    async def transaction_leader(self, transactional_id: str) -> int:
        """Node that coordinates the transactions of this id."""
        code = 0
        for character in transactional_id:
            code = (31 * code + ord(character)) & 0xFFFF_FFFF
        return await self.leader(TRANSACTIONS, (code & 0x7FFF_FFFF) % TRANSACTION_PARTITIONS)

    async def until_whole(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not await self._is_whole():  # noqa: ASYNC110 - it happens in another process
                await asyncio.sleep(0.5)

    async def _is_whole(self) -> bool:
        with contextlib.suppress(KafkaError):
            async with self._administrator() as admin:
                partitions = [one for topic in await admin.describe_topics() for one in topic["partitions"]]
            return all(len(one["isr"]) == len(one["replicas"]) for one in partitions)
        return False

    @contextlib.asynccontextmanager
    async def _administrator(self) -> AsyncIterator[AIOKafkaAdminClient]:
        async with administrator(self.kafka_settings(KafkaSettings()), "test") as admin:
            yield admin

    # -- processes ---------------------------------------------------------------------------------------------------

    def _format(self, node: int, quorum: Mapping[int, int]) -> None:
        folder = self.folders[node - 1]
        for path in (folder.kafka, folder.logs, folder.tmp):
            path.mkdir(parents=True)
        properties = layout.server_properties(
            self.ports[node - 1], quorum.get(node, 0), fsync=False, after_crash=True
        ) | {
            "node.id": node,
            "controller.quorum.voters": ",".join(f"{voter}@127.0.0.1:{port}" for voter, port in quorum.items()),
            "offsets.topic.replication.factor": self.size,
            "transaction.state.log.replication.factor": self.size,
            "transaction.state.log.min.isr": self.size - 1,
            "transaction.state.log.num.partitions": TRANSACTION_PARTITIONS,
            # A follower that is gone is noticed in time for a test.
            "replica.lag.time.max.ms": 3000,
        }
        if node not in quorum:
            properties |= {
                "process.roles": "broker",
                "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[node - 1]}",
            }
        folder.properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        folder.log4j.write_text(layout._LOG4J)
        format_folder(folder, self._classpath, HEAP_MIB)
        own = {"cluster.id": CLUSTER_ID, "node.id": node}
        lines = [line.partition("=") for line in folder.meta.read_text().splitlines()]
        folder.meta.write_text("".join(f"{name}={own.get(name, value)}\n" for name, _, value in lines))

    def _launch(self, node: int) -> None:
        folder = self.folders[node - 1]
        command = java.command(
            "kafka.Kafka",
            [folder.properties.name],
            self._classpath,
            heap_mib=HEAP_MIB,
            options=archive_options(self._cache),
        )
        self.children[node] = Child(command, cwd=folder.root, env=java.environment(), output=folder.jvm_log)


@contextlib.contextmanager
def broker_cluster(root: Path, **how: int) -> Iterator[BrokerCluster]:
    """A cluster that runs, for the length of the block; with the arguments of :class:`BrokerCluster`."""
    cluster = BrokerCluster(root, **how)
    try:
        yield cluster.start()
    finally:
        cluster.stop()
