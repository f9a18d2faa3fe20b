"""The GPU path's host side on a stand-in for CUDA: devices, dtypes, forks, groups, deaths and bytes; no numbers.

Each test is a process of its own that sees GPUs; what it runs is in ``tests.support.cuda_standin.children``.
"""

import shutil
from pathlib import Path

import pytest

from tests.support.cuda_standin.build import Rehearse
from trinity_bus.runtime.device import is_installed_for_cpu

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the stand-in is built with gcc"),
]


def test_an_environment_for_gpus_computes_on_them(rehearse: Rehearse) -> None:
    assert rehearse("device") == [{"uses_gpu": True, "on_cpu": False, "torch": True}]


@pytest.mark.skipif(not is_installed_for_cpu(), reason="the packages are those for GPUs")
def test_an_environment_for_cpus_leaves_a_gpu_alone(rehearse: Rehearse) -> None:
    # As it is where the driver is there, and the packages are those of requirements/cpu.lock.
    told = rehearse("device", variables={"PYTHONPATH": str(Path.cwd())})
    assert told == [{"uses_gpu": False, "on_cpu": True, "torch": True}]


def test_what_a_preload_forks_can_use_the_gpu(rehearse: Rehearse) -> None:
    assert rehearse("forked") == [{"begun": False, "child": "ok"}]


@pytest.mark.parametrize("words", [(), ("recompute=true",), ("lora_rank=4",), ("kl_coef=0.1",)])
def test_a_trainer_in_bfloat16(rehearse: Rehearse, words: tuple[str, ...]) -> None:
    (told,) = rehearse("trainer", *words)
    assert told["device"] == "cuda:0"
    assert told["devices"] == ["cuda:0"]
    assert told["loaded"] == 1
    # Float32 states as a whole would take twice their memory, and their gradient too.
    assert told["hidden"] == ["torch.bfloat16"]
    assert told["fused"] is True


def test_a_trainer_in_float32(rehearse: Rehearse) -> None:
    (told,) = rehearse("trainer", "dtype=float32")
    assert (told["dtype"], told["hidden"]) == ("torch.float32", ["torch.float32"])


@pytest.mark.skipif(not is_installed_for_cpu(), reason="the packages are those for GPUs")
def test_a_checkpoint_of_a_cpu_is_taken_up_on_a_gpu(rehearse: Rehearse, tmp_path: Path) -> None:
    rehearse("saved", str(tmp_path), variables={"PYTHONPATH": str(Path.cwd())})
    assert rehearse("resumed", str(tmp_path)) == [{"device": "cuda", "step": 0}]


def test_experts_are_what_grouped_kernels_take(rehearse: Rehearse) -> None:
    (told,) = rehearse("experts")
    assert told == {"product": ["cuda:0", [24, 96]], "rows": ["cuda:0", [24, 64]], "weights": ["cuda:0", [4, 96, 64]]}


@pytest.mark.parametrize("words", [("data_parallel=2",), ("tensor_parallel=2",)])
def test_ranks_over_nccl(rehearse: Rehearse, words: tuple[str, ...]) -> None:
    (told,) = rehearse("ranks", *words, gpus=2)
    assert told["loaded"] == 1


def test_a_late_link_costs_the_link_and_not_the_process(rehearse: Rehearse) -> None:
    made, late, alive = rehearse("late")
    assert "deadline" in late["error"]
    # Nor does it wait for what the process computes, take its multiprocessors, or block it while it is made.
    assert alive == {"alive": True, "own_stream": [True] * 3}
    assert made == {"blocks_while_made": 0, "most_blocks": 4, "pinned": [True, True]}


def test_versions_pass_from_gpu_to_gpu(rehearse: Rehearse) -> None:
    for told in rehearse("chain", gpus=3):
        assert told["found"] == [["", told["wanted"]]] * 2
