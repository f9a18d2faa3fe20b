"""Every shim is needed, and none is missing: checked by training without one of them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from schemas import ExperienceGroup
from trinity_bus.config import TrainerSettings
from trinity_bus.training import cpu_platform
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron_engine import MegatronEngine

pytestmark = pytest.mark.skipif(not cpu_platform.on_cpu(), reason="there is CUDA: nothing is shimmed")


@pytest.fixture
def train(model_folder: Path, group: Callable[..., ExperienceGroup], layout: Layout) -> Callable[[], None]:
    def run() -> None:
        engine = MegatronEngine(TrainerSettings(model_path=str(model_folder), learning_rate=1e-3), layout)
        assert engine.train_step([group()])["updates"] == 1

    return run


def test_none_is_missing(train: Callable[[], None]) -> None:
    train()


@pytest.mark.parametrize("name", cpu_platform.CUDA_CALLS)
def test_each_cuda_call_is_needed(name: str, train: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    view = cpu_platform.prepare()
    assert view is not None
    monkeypatch.setattr(view.cuda, name, getattr(torch.cuda, name))
    with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA"):
        train()


@pytest.mark.parametrize("name", cpu_platform.FACTORIES)
def test_each_factory_is_needed(name: str, train: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_platform.prepare(), name, getattr(torch, name))
    with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA"):
        train()


@pytest.mark.parametrize(("module", "function"), [(m, f) for m, (f, _) in cpu_platform.TYPE_ASSERTIONS.items()])
def test_each_type_assertion_is_needed(
    module: str, function: str, train: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    shimmed = importlib.import_module(module)
    monkeypatch.setattr(shimmed, function, getattr(shimmed, function).__wrapped__)
    with pytest.raises(AssertionError):
        train()


def test_torch_itself_stays_as_it_is(train: Callable[[], None]) -> None:
    train()
    assert torch.Tensor.type is torch._C.TensorBase.type
    assert torch.zeros(1).type() == "torch.FloatTensor"
    assert torch.compile.__module__ == "torch"
    with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA"):
        torch.zeros(1, device="cuda")


def test_nothing_was_compiled() -> None:
    """In a process of its own: others may have a use for the compiler."""
    code = """
import sys, trinity_bus.training.megatron
from megatron.core.fusions.fused_bias_swiglu import swiglu
sys.exit(hasattr(swiglu, "_torchdynamo_orig_callable") or "torch._inductor" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
