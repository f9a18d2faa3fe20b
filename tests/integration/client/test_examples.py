"""The programs of the documents and of the examples, run as they stand, against the real coordinator."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.client_fleet import Fleet, fleet, run
from tests.support.mesh import Mesh

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


async def program(fleet: Fleet, *command: str) -> str:
    """What a program prints that ends well."""
    kafka = fleet.mesh.kafka
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS": str(kafka.bootstrap_servers),
            "TRINITY_BUS_KAFKA__NAMESPACE": kafka.namespace,
        },
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.timeout(300)  # It starts six processes, one after the other where cores are few.
def test_programs_of_the_documents_and_of_other_clients_run_as_they_stand(mesh: Mesh) -> None:
    async def main() -> None:
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/clients.md").read_text(), re.DOTALL)
        assert len(blocks) == 2
        async with fleet(mesh) as mesh_of:
            kafka = mesh_of.mesh.kafka
            script = str(ROOT / "examples/commands/batch.py")
            coordinator, scheduler, plain = await asyncio.gather(
                *(program(mesh_of, sys.executable, "-c", block) for block in blocks),
                program(mesh_of, sys.executable, script, str(kafka.bootstrap_servers), kafka.namespace, "plain"),
            )
            assert coordinator == "4 tasks, reward 1.0\n{'eval/sums/reward/mean@1': 1.0}\n"
            assert scheduler == "1/1  1.0\n" * 4 + "4 samples\n"
            result = json.loads(plain)
            assert (result["batch_id"], result["state"], result["finished_task_count"]) == ("plain", "finalized", 2)

            listed = await program(mesh_of, sys.executable, "-m", "workers.cli.app", "batches", "--json")
            states = {batch["batch_id"]: batch["state"] for batch in map(json.loads, listed.splitlines())}
            assert states["1"] == states["1/sums"] == states["plain"] == "finalized"

    run(main(), limit_s=280)
