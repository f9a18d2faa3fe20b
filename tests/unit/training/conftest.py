"""One process group for the folder, and tiny models."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes.tiny_trainer import write_model
from trinity_bus.config import TrainerSettings
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.engines.rank_engine import RankEngine
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron import parallel


@pytest.fixture(scope="session")
def layout() -> Iterator[Layout]:
    yield parallel.initialize(TrainerSettings())
    parallel.shut_down()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tied")


@pytest.fixture(params=["megatron", "torch"])
def engine(request: pytest.FixtureRequest, model_folder: Path, layout: Layout) -> Callable[..., RankEngine]:
    """Makes engines of both kinds, with the settings that are given."""

    def make(**settings: Any) -> RankEngine:
        made = TrainerSettings(**{"model_path": str(model_folder), "learning_rate": 1e-2, **settings})
        return MegatronEngine(made) if request.param == "megatron" else TorchEngine(made)

    return make
