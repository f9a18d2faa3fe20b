"""Either end of a weight transfer is killed amid it: nothing hangs, nothing is torn, and the trace tells.

``benchmarks/weight_faults.py`` does the same more often, and measures.
"""

from pathlib import Path

import pytest

from benchmarks._weight_faults.mesh import FaultyMesh, every_kill, faults
from benchmarks._weight_faults.workers import METHODS, FaultMethod
from tests.support.sampled import at_night
from trinity_bus.config import KafkaSettings
from trinity_bus.telemetry import load_spans

pytestmark = pytest.mark.integration

SYNC_TIMEOUT_S = 5.0


@pytest.mark.timeout(400)
@pytest.mark.parametrize("method", ["nccl", *map(at_night, METHODS[1:])])
async def test_a_mesh_recovers_from_a_kill_of_either_at_every_phase_of_a_transfer(
    kafka: KafkaSettings, tmp_path: Path, method: FaultMethod
) -> None:
    kills = every_kill(1)
    mesh = FaultyMesh(kafka, tmp_path, explorers=2, sync_timeout_s=SYNC_TIMEOUT_S, method=method)
    with mesh.running():
        recovered = await faults(mesh, kills)
    assert [(found.phase, found.victim) for found in recovered] == kills
    spans = load_spans(tmp_path)
    epochs = {span.attributes["rl.weight_sync.epoch"] for span in spans if span.name == "announce version"}
    assert len(epochs) >= len(kills), "each kill is a new epoch"
    if method == "nccl":
        failed = {span.name for span in spans if span.error is not None}
        assert "send weights" in failed
