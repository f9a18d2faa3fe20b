"""A namespace of its own for each test."""

from pathlib import Path

import pytest

from tests.support.mesh.mesh import Mesh
from trinity_bus.config import KafkaSettings


@pytest.fixture
def mesh(kafka: KafkaSettings, tmp_path: Path) -> Mesh:
    return Mesh(kafka, tmp_path)
