"""vLLM's GPU engine, and the demo's services, on a stand-in for CUDA: with the packages of ``requirements/gpu.lock``.

``make gpu-rehearsal`` makes that environment; in the one for CPUs vLLM has no GPU worker, and all this is left out.
"""

import shutil
import signal
from pathlib import Path
from typing import Final

import pytest

from tests.support.cuda_standin.build import MARK, Rehearse
from tests.support.mesh.processes import marked_processes
from tests.support.mesh.waiting import wait_until
from trinity_bus.runtime.device import is_installed_for_cpu

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(is_installed_for_cpu(), reason="needs the packages for GPUs: make gpu-rehearsal"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the stand-in is built with gcc"),
]

KILLED: Final = -signal.SIGKILL


def nobody_left(folder: Path) -> bool:
    return not marked_processes(MARK, str(folder))


def test_what_explorers_are_forked_from_has_one_thread_and_no_processes(rehearse: Rehearse) -> None:
    assert rehearse("preloaded") == [{"children": [], "threads": [], "begun": False}]


def test_an_engine_takes_versions_and_leaves_nobody_when_its_explorer_is_killed(
    rehearse: Rehearse, tmp_path: Path
) -> None:
    began, *versions, _ = rehearse("engine", "memory", "nccl", status=KILLED)
    assert began == {"device": "cuda", "second_runner": True}
    assert [(told["method"], told["version"]) for told in versions] == [
        ("memory", 1),
        ("memory", 2),
        ("nccl", 3),
        ("nccl", 4),
    ]
    assert all(told["wanted"] for told in versions)
    # It would keep the GPU's memory, and the next start fail.
    wait_until(lambda: nobody_left(tmp_path), "end of the engine", 60.0)


@pytest.mark.parametrize("words", [("quantization=fp8",), ("experts",)])
def test_an_engine_of_another_kind_takes_versions(rehearse: Rehearse, tmp_path: Path, words: tuple[str, ...]) -> None:
    _, *versions, _ = rehearse("engine", "memory", *words, status=KILLED)
    assert [told["version"] for told in versions] == [1, 2]
    wait_until(lambda: nobody_left(tmp_path), "end of the engine", 60.0)


def test_an_engine_of_two_gpus_takes_versions_and_leaves_nobody(rehearse: Rehearse, tmp_path: Path) -> None:
    _, *versions, held = rehearse("engine", "memory", "nccl", "tensor_parallel_size=2", gpus=2, status=KILLED)
    assert [told["version"] for told in versions] == [1, 2, 3, 4]
    # One receives, the other maps its memory.
    assert held == {"memories": 1, "mapped_by": 2}
    wait_until(lambda: nobody_left(tmp_path), "end of the engine", 60.0)


def test_without_a_compiler_the_engine_does_not_start_and_says_so(rehearse: Rehearse, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("uname", "ldconfig", "sh", "env"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    variables = {"PATH": str(programs), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    (told,) = rehearse("engine", "memory", variables=variables)
    assert "C compiler" in told["failed"]


def test_all_services_of_the_demo_start_on_one_gpu(rehearse: Rehearse, tmp_path: Path) -> None:
    """No token is drawn, for that needs values: the demo stands at its first test until its limit ends it."""
    run = tmp_path / "run"
    rehearse("demo", "--run-dir", str(run), "--explorers", "1", "--limit", "400", status=1)
    logs = {log.stem: log.read_text(encoding="utf-8", errors="replace") for log in (run / "logs").glob("*.log")}
    assert "training in float32 on cuda" in logs["trainer"]
    assert "serving version 0" in logs["explorer-0"]
    assert not [name for name, log in logs.items() if "Traceback" in log or "Cannot re-initialize CUDA" in log]
    assert nobody_left(tmp_path)


@pytest.mark.parametrize(
    ("kind", "tokens", "graphs"),
    [
        ("H100", 8192, "FULL_AND_PIECEWISE"),
        ("A100", 2048, "FULL_AND_PIECEWISE"),
        ("L40S", 2048, "FULL_AND_PIECEWISE"),
    ],
)
def test_what_vllm_makes_of_the_settings_that_we_ship(rehearse: Rehearse, kind: str, tokens: int, graphs: str) -> None:
    one_node, many_nodes = rehearse("configured", gpus=2, variables={"FAKE_KIND": kind})
    expected = {
        "dtype": "torch.bfloat16",
        "tokens_a_step": tokens,
        "sequences": 256,
        "asynchronous": True,
        "graphs": graphs,
        "prefixes": True,
        "share": 0.9,
        "second_runner": True,
    }
    assert one_node == {"size": "8-gpus", "tensor_parallel": 1, **expected}
    assert many_nodes == {"size": "64-gpus", "tensor_parallel": 2, **expected}
