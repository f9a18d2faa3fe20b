"""Every shim is needed, and none is missing: checked by training without one of them."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fakes.experiences import make_group
from tests.support.fakes.tiny_trainer import write_model
from trinity_bus.config import TrainerSettings
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron import cpu_platform

pytestmark = pytest.mark.skipif(not cpu_platform.on_cpu(), reason="there is CUDA: nothing is shimmed")


@pytest.fixture(scope="session")
def experts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "experts", family="qwen3_moe")


@pytest.fixture
def train(model_folder: Path, experts_folder: Path, layout: Layout) -> Callable[..., None]:
    def run(*also: str, experts: bool = False) -> None:
        folder = experts_folder if experts else model_folder
        values = {"model_path": str(folder), "learning_rate": 1e-3, **dict.fromkeys(also, True)}
        engine = MegatronEngine(TrainerSettings(**values))
        assert engine.train_step([make_group()])["updates"] == 1

    return run


def test_none_is_missing(train: Callable[..., None]) -> None:
    train()
    train("distributed_optimizer", "recompute")
    train(experts=True)


CUDA = pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA")


@contextlib.contextmanager
def unshimmed(module: str, function: str) -> Iterator[None]:
    """With what Megatron itself has in place of a shim."""
    replaced: list[Any] = []

    def genuine(shimmed: Any) -> Any:
        replaced.append(shimmed)
        return shimmed.__wrapped__

    cpu_platform.replace_function(module, function, genuine)
    try:
        yield
    finally:
        cpu_platform.replace_function(module, function, lambda _: replaced[0])


@pytest.mark.parametrize("name", [*cpu_platform.CUDA_CALLS, *cpu_platform.EXPERT_CUDA_CALLS, *cpu_platform.FACTORIES])
def test_each_name_of_torch_is_needed(name: str, train: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    view, experts = cpu_platform.prepare(), name in cpu_platform.EXPERT_CUDA_CALLS
    assert view is not None
    owner, genuine = (view, torch) if name in cpu_platform.FACTORIES else (view.cuda, torch.cuda)
    monkeypatch.setattr(owner, name, getattr(genuine, name))
    if experts:
        dispatcher = sys.modules[cpu_platform.COUNTS[0]].MoEAlltoAllTokenDispatcher
        monkeypatch.setattr(dispatcher, "cuda_dtoh_stream", None)
    with CUDA:
        train(experts=experts)


def test_counts_are_not_copied_on_streams(train: Callable[..., None]) -> None:
    with unshimmed(*cpu_platform.COUNTS), CUDA:
        train(experts=True)


def test_the_undefined_name_is_needed(train: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = cpu_platform.UNDEFINED
    monkeypatch.delattr(sys.modules[module], name)
    with pytest.raises(NameError, match=name):
        train(experts=True)


@pytest.mark.parametrize(("module", "function"), cpu_platform.TYPE_ASSERTIONS.items())
def test_each_type_assertion_is_needed(module: str, function: str, train: Callable[..., None]) -> None:
    with unshimmed(module, function), pytest.raises((AssertionError, TypeError), match=r"cuda|^$"):
        train("distributed_optimizer")


@pytest.mark.parametrize("name", cpu_platform.RANDOM_CALLS)
def test_each_call_for_a_generator_is_needed(
    name: str, train: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, reads = sys.modules[cpu_platform.RANDOM], name == "_get_cuda_rng_state"
    monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)
    monkeypatch.setattr(torch.cuda, "_queued_calls", [])
    with CUDA if reads else contextlib.nullcontext():
        train("recompute")
    assert reads or torch.cuda._queued_calls


def test_torch_itself_stays_as_it_is(train: Callable[..., None]) -> None:
    train()
    assert torch.Tensor.type is torch._C.TensorBase.type
    assert torch.zeros(1).type() == "torch.FloatTensor"
    assert torch.compile.__module__ == "torch"
    with CUDA:
        torch.zeros(1, device="cuda")


def test_nothing_was_compiled() -> None:
    """In a process of its own: others may have a use for the compiler."""
    code = """
import sys, trinity_bus.training.megatron.core
from megatron.core.fusions.fused_bias_swiglu import swiglu
sys.exit(hasattr(swiglu, "_torchdynamo_orig_callable") or "torch._inductor" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
