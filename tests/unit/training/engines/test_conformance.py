"""Both engines do what the contract says, on one rank, and Megatron's what the reference does.

``integration/training`` has the same on two ranks.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.fakes.tiny_trainer import write_model
from tests.support.training.conformance import CHECKS, VOCABULARY, Subject, batch, checks_of
from trinity_bus.config import TrainerSettings
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.engines.rank_engine import RankEngine
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.families import FAMILIES
from trinity_bus.training.layout import Layout


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {
        family: write_model(root / family, family=family, vocabulary=VOCABULARY, tied=family == "qwen3")
        for family in FAMILIES
    }


@pytest.fixture
def open_one(request: pytest.FixtureRequest, layout: Layout) -> Callable[[TrainerSettings], RankEngine]:
    return MegatronEngine if request.param == "megatron" else TorchEngine


@pytest.mark.parametrize(
    ("open_one", "family", "check"),
    [
        (engine, family, check)
        for engine in ("megatron", "torch")
        for family in FAMILIES
        for check in checks_of(family, reference=engine == "torch")
        # Dense families differ in their numbers alone.
        if family in {"qwen3", "qwen3_moe"} or check in {"logits", "losses"}
    ],
    indirect=["open_one"],
)
def test_an_engine(
    check: str, family: str, open_one: Callable[[TrainerSettings], RankEngine], folders: dict[str, Path], tmp_path: Path
) -> None:
    CHECKS[check](Subject(open_one, folders[family], tmp_path, {}))


def test_bfloat16_on_a_cpu_learns_what_float32_does(folders: dict[str, Path], layout: Layout, tmp_path: Path) -> None:
    subject = Subject(MegatronEngine, folders["qwen3"], tmp_path, {"dtype": "bfloat16"})
    engine, reference = subject.make(), subject.reference()
    for step in range(3):
        ours, theirs = engine.train_step(batch(step)), reference.train_step(batch(step))
        for metric in ("loss", "entropy", "grad_norm"):
            assert ours[metric] == pytest.approx(theirs[metric], rel=0.05, abs=0.02), (step, metric)
    assert {tensor.dtype for _, tensor in engine.hf_tensors()} == {torch.bfloat16}
    CHECKS["restart"](subject)
