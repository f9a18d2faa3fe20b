"""The settings that we ship for GPUs fit the GPUs that they ask for, by our own sizing."""

import tomllib
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.chart import ROOT, SIZES, shape_of, values
from trinity_bus.config.sections import Sections
from trinity_bus.sizing.memory import GIB, explorer_memory, trainer_memory

WITH_GPUS: Final = [size for size in SIZES if values(size)["device"] == "gpu"]
_GPU: Final = 80 * GIB
_COMPOSE: Final = "mesh.gpu.toml"
_COMPOSE_MODEL: Final = "Qwen3-0.6B"
"""That the file of compose names as an example."""


def shipped() -> Iterator[tuple[str, str, Sections]]:
    """Each file, its model, and its settings."""
    for size in WITH_GPUS:
        settings = Sections(**values(size)["settings"])
        yield f"values-{size}.yaml", str(settings.mesh.model_path), settings
    compose = tomllib.loads((ROOT / "deploy" / "docker-compose" / _COMPOSE).read_text(encoding="utf-8"))
    yield _COMPOSE, _COMPOSE_MODEL, Sections(**compose)


@pytest.mark.parametrize(("model", "settings"), [pytest.param(*rest, id=name) for name, *rest in shipped()])
def test_trainer_and_engines_fit_their_gpus(model: str, settings: Sections) -> None:
    for need in (memory(shape_of(model), settings, _GPU) for memory in (trainer_memory, explorer_memory)):
        assert need.fits, f"{need.total / GIB:.1f} of {(need.available or 0) / GIB:.1f} GiB: {need.items}"
