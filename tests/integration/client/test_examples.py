"""The programs of the documents and of the examples, run as they stand, against the real coordinator."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.mesh.client_fleet import Fleet, fleet, held, program, tasks
from tests.support.mesh.mesh import Mesh, trinity_bus
from trinity_bus.client import RolloutCoordinator

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


async def command(fleet: Fleet, *arguments: str) -> str:
    """What a command of ``trinity-bus`` prints."""
    done = await asyncio.to_thread(trinity_bus, fleet.mesh.kafka, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)  # It starts six processes, one after the other where cores are few.
async def test_programs_of_the_documents_and_of_other_clients_run_as_they_stand(mesh: Mesh) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/clients.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    async with fleet(mesh) as mesh_of:
        kafka = mesh_of.mesh.kafka
        script = str(ROOT / "examples/commands/batch.py")
        client, coordinator, scheduler, plain = await asyncio.gather(
            *(program(mesh_of, sys.executable, "-c", block) for block in blocks),
            program(mesh_of, sys.executable, script, str(kafka.bootstrap_servers), kafka.namespace, "plain"),
        )
        assert client == "completed 1.0 1\n" * 4 + "finalized 4\n"
        assert coordinator == "4 tasks, reward 1.0\n{'eval/sums/reward/mean@1': 1.0}\n"
        assert scheduler == "1/1  1.0\n" * 4 + "4 samples\n"
        result = json.loads(plain)
        assert (result["batch_id"], result["state"], result["finished_task_count"]) == ("plain", "finalized", 2)

        listed = await command(mesh_of, "batches", "--json")
        states = {batch["batch_id"]: batch["state"] for batch in map(json.loads, listed.splitlines())}
        assert states["1"] == states["1/sums"] == states["plain"] == "finalized"


async def test_a_batch_is_aborted_from_the_command_line(mesh: Mesh) -> None:
    async with fleet(mesh) as mesh_of, RolloutCoordinator(mesh_of.settings) as client:
        await client.submit_batch(batch_id="b", tasks=[*tasks(1), *held(1)], batch_type="train")
        await mesh_of.orders("b#h0")
        await mesh_of.counted("b#t0")
        await command(mesh_of, "abort", "b", "--reason", "enough of it", "--keep-partial-results")
        assert (await client.finalize_train_batch("b"))["finished_task_count"] == 1
        (batch,) = map(json.loads, (await command(mesh_of, "batches", "--json")).splitlines())
        assert (batch["state"], batch["reason"], batch["aborted"]) == ("aborted", "enough of it", 1)
