"""Several Kafka brokers as one cluster, each a process that can be killed: what the embedded broker is one of."""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.waiting import wait_until
from trinity_bus.broker import java, layout
from trinity_bus.broker.archive import archive_options
from trinity_bus.broker.folders import cache_dir
from trinity_bus.broker.jars import install
from trinity_bus.broker.probe import ask
from trinity_bus.config import BrokerSettings, Settings
from trinity_bus.runtime.process import Child, tail

CLUSTER_ID = "trinity-bus-test-clust"
HEAP_MIB = 192
START_LIMIT_S = 120.0


@dataclass(slots=True)
class BrokerCluster:
    """Brokers, of which the last is the controller too: any of the others may be lost, and the cluster goes on."""

    folders: list[layout.Folder]
    ports: list[int]
    children: dict[int, Child]
    """Node id, from 1, to its process."""

    @property
    def bootstrap_servers(self) -> str:
        """All of them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def kill(self, node: int) -> None:
        """SIGKILL; it does not come back."""
        self.children.pop(node).kill()

    def alive(self) -> int:
        """Brokers that the cluster counts as alive, by the word of one that runs."""
        for node in self.children:
            with contextlib.suppress(OSError):
                return ask(self.ports[node - 1]).brokers
        return 0


@contextlib.contextmanager
def broker_cluster(root: Path, size: int = 3, *, more: Mapping[str, object] | None = None) -> Iterator[BrokerCluster]:
    """A cluster for the length of the block.

    Args:
        root: For the brokers' data.
        size: How many.
        more: Of the brokers' settings.
    """
    settings = BrokerSettings(port=0, data_dir=root, cache_dir=Settings().broker.cache_dir, heap_mib=HEAP_MIB)
    cache = cache_dir(settings)
    classpath = install(cache)
    *ports, controller = quiet_ports(size + 1)
    cluster = BrokerCluster([], ports, {})
    with contextlib.ExitStack() as stack:
        for node, port in enumerate(ports, 1):
            folder = layout.Folder(root / f"broker-{node}")
            for path in (folder.kafka, folder.logs, folder.tmp):
                path.mkdir(parents=True)
            properties = layout.server_properties(port, controller, fsync=False, after_crash=True) | {
                "node.id": node,
                "controller.quorum.voters": f"{size}@127.0.0.1:{controller}",
                "offsets.topic.replication.factor": min(3, size),
                "transaction.state.log.replication.factor": min(3, size),
                "transaction.state.log.min.isr": min(2, size),
                # A follower that is gone is noticed in time for a test.
                "replica.lag.time.max.ms": 3000,
                **(more or {}),
            }
            if node != size:
                properties |= {"process.roles": "broker", "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
            folder.properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
            folder.log4j.write_text(layout._LOG4J)
            cluster.folders.append(folder)
            arguments = ["format", f"--cluster-id={CLUSTER_ID}", "--config", folder.properties.name]
            command = java.command("kafka.tools.StorageTool", arguments, classpath, heap_mib=HEAP_MIB)
            subprocess.run(command, cwd=folder.root, env=java.environment(), check=True, capture_output=True)
            command = java.command(
                "kafka.Kafka",
                [folder.properties.name],
                classpath,
                heap_mib=HEAP_MIB,
                options=archive_options(cache),
            )
            child = stack.enter_context(Child(command, cwd=folder.root, env=java.environment(), output=folder.jvm_log))
            cluster.children[node] = child
        try:
            wait_until(lambda: cluster.alive() == size, f"{size} brokers", START_LIMIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {tail(cluster.folders[0].server_log, 20)}") from None
        yield cluster
