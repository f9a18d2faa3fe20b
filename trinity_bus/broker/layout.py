"""What is in the broker's data folder, and the files that this project writes there.

::

    broker.json         which process serves this folder, or served it last
    broker.lock         locked by that process for as long as it lives
    server.properties   written anew at each start
    log4j2.properties   likewise
    kafka/              the log itself, in Kafka's format
    logs/               server.log (Kafka's), jvm.log (standard output)
    tmp/                native libraries that Kafka unpacks
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from trinity_bus.config import BrokerSettings
from trinity_bus.runtime.plain_files import read_plain, write_plain
from trinity_bus.runtime.ports import LOOPBACK
from trinity_bus.runtime.process import start_time

_MAX_STATE_BYTES: Final = 1 << 16


class Folder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "broker.json"
        self.lock = root / "broker.lock"
        self.properties = root / "server.properties"
        self.log4j = root / "log4j2.properties"
        self.kafka = root / "kafka"
        self.meta = self.kafka / "meta.properties"  # Kafka's ids of this folder; there once it is formatted
        self.logs = root / "logs"
        self.server_log = self.logs / "server.log"
        self.jvm_log = self.logs / "jvm.log"
        self.tmp = root / "tmp"

    @property
    def formatted(self) -> bool:
        return self.meta.exists()

    @property
    def cluster_id(self) -> str | None:
        # None before Kafka's first start here.
        with contextlib.suppress(OSError):
            for line in read_plain(self.meta, _MAX_STATE_BYTES).decode(errors="replace").splitlines():
                name, _, value = line.partition("=")
                if name == "cluster.id":
                    return value
        return None

    @property
    def after_crash(self) -> bool:
        # Kafka marks an orderly end, and takes the mark off at a start.
        return self.formatted and not (self.kafka / ".kafka_cleanshutdown").exists()


@dataclass(frozen=True, slots=True)
class State:
    pid: int  # of the Java runtime
    started: int  # in clock ticks since boot: a later process with the same id has another
    port: int
    background: bool  # whether it was meant to outlive the process that started it

    @property
    def alive(self) -> bool:
        # Whether that very process still runs.
        return start_time(self.pid) == self.started

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"


def read_state(folder: Folder) -> State | None:
    """Who serves this folder or served it last; None where nobody did or the file is damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        match json.loads(read_plain(folder.state, _MAX_STATE_BYTES)):
            case {"pid": int(pid), "started": int(started), "port": int(port), "background": bool(background)}:
                return State(pid, started, port, background)
    return None


def write_state(folder: Folder, state: State) -> None:
    write_plain(folder.state, json.dumps(asdict(state)) + "\n")


_LOG4J = """\
status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName=logs/server.log
appender.file.filePattern=logs/server.log.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %m (%c)%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=10MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=3
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
# Each prints a hundred lines of settings at start.
logger.config.name=org.apache.kafka.common.config
logger.config.level=warn
logger.kafkaconfig.name=kafka.server.KafkaConfig
logger.kafkaconfig.level=warn
logger.clients.name=org.apache.kafka.clients
logger.clients.level=warn
"""


def write_configuration(
    folder: Folder, *, port: int, controller_port: int, fsync: bool, address: str | None = None
) -> None:
    properties = server_properties(port, controller_port, fsync=fsync, after_crash=folder.after_crash, address=address)
    write_plain(folder.properties, "".join(f"{name}={value}\n" for name, value in properties.items()))
    write_plain(folder.log4j, _LOG4J)


def server_properties(
    port: int, controller_port: int, *, fsync: bool, after_crash: bool, address: str | None = None
) -> dict[str, object]:
    """Kafka's settings: one node, broker and controller in one, on the loopback interface, and at an ``address``."""
    # Its working folder is the data folder, and paths are relative to it: a properties file cannot hold every path.
    mib = 1 << 20
    outside = "" if address is None else f",OUTSIDE://{address}"
    properties: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}{outside}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}{outside}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "log.dirs": "kafka",
        "auto.create.topics.enable": "false",
        "default.replication.factor": 1,
        # One node keeps the only copy of Kafka's own topics; few partitions of them make a quick start.
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        # The topics have limits of their own; these only have to be no lower.
        "message.max.bytes": 96 * mib,
        "replica.fetch.max.bytes": 96 * mib,
        "socket.request.max.bytes": 128 * mib,
        # Files small enough that retention and compaction get to them on a laptop's disk.
        "log.segment.bytes": 256 * mib,
        "log.index.size.max.bytes": mib,
        # Kafka's default is a fixed 128 MiB of heap; this is enough for 300,000 keys in one pass.
        "log.cleaner.dedupe.buffer.size": 8 * mib,
        # The controller lets a broker in only when it has not heard from the one before for this long, unless that one
        # said goodbye. Otherwise long is better: a machine that is busy must not fence its only broker.
        "broker.session.timeout.ms": 3000 if after_crash else 18000,
        "broker.heartbeat.interval.ms": 500 if after_crash else 2000,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
    if fsync:
        properties["log.flush.interval.messages"] = 1
    return properties


def cache_dir(settings: BrokerSettings) -> Path:
    return (settings.cache_dir or xdg("XDG_CACHE_HOME", ".cache") / "trinity-bus").absolute()


def data_dir(settings: BrokerSettings) -> Path:
    return (settings.data_dir or xdg("XDG_DATA_HOME", ".local/share") / "trinity-bus" / "broker").absolute()


def xdg(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # The rules say that a relative path must be ignored.
    return Path(value) if Path(value).is_absolute() else Path.home() / default
