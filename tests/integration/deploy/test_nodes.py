"""The scripts for meshes on several nodes, as Slurm and SkyPilot run them, with every node on this machine.

``srun``, ``scontrol`` and ``torchrun`` are stand-ins (``tests/support/nodes``), engine and trainer are FAKE; the
addresses of nodes are several of the loopback interface. The rest, and every process, is real.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from schemas import BatchLifecycleState, BatchRecord
from schemas.topics import BATCHES
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.processes import Program, command_of
from tests.support.sampled import at_night
from trinity_bus.broker.layout import cache_dir
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
STAND_INS = ROOT / "tests" / "support" / "nodes"
NODES = [f"127.0.0.{number}" for number in range(11, 15)]
LIMIT_S = 240.0


def environment(folder: Path, port: int) -> dict[str, str]:
    lines = [
        {"task_id": f"task-{i}", "workflow": "sequence", "prompt": f"{i} {i + 1}", "answer": "red green blue"}
        for i in range(8)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "tasks.toml").write_text(f'[[train]]\npath = "{folder / "train.jsonl"}"\n')
    (folder / "mesh.toml").write_text("[coordinator]\nbatch_size = 4\ngroup_size = 2\nmax_staleness = 2\n")
    return {
        **os.environ,
        "PATH": f"{STAND_INS}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "BROKER_PORT": str(port),
        "TRAINER_NODES": "2",
        "EXPLORERS": "2",
        "TRINITY_BUS_CONFIG": str(folder / "mesh.toml"),
        "TRINITY_BUS_TASKSET__PATH": str(folder / "tasks.toml"),
        "TRINITY_BUS_BROKER__CACHE_DIR": str(cache_dir(Settings().broker)),
        "TRINITY_BUS_BROKER__HEAP_MIB": "384",
        "TRINITY_BUS_BROKER__PORT": "0",
        "TRINITY_BUS_BROKER__START_TIMEOUT_S": str(LIMIT_S),
        "TRINITY_BUS_TRAINER__RANKS_KEY": "a key of some characters",
        "SLURM_JOB_NODELIST": ",".join(NODES),
    }


def by_slurm(folder: Path) -> list[str]:
    return ["bash", str(DEPLOY / "slurm" / "mesh.sbatch"), str(folder / "mesh.toml")]


def by_skypilot(folder: Path) -> list[str]:
    """What SkyPilot would run on each node; the stand-in of ``srun`` starts it."""
    activate = folder / "trinity-bus" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    run = yaml.safe_load((DEPLOY / "skypilot" / "mesh.yaml").read_text())["run"]
    return ["srun", "bash", "-c", f"export SKYPILOT_NODE_RANK=$SLURM_NODEID\n{run}"]


@pytest.mark.parametrize(("command", "run_dir"), [(by_slurm, "run"), at_night(by_skypilot, "mesh")])
async def test_nodes_become_a_mesh_and_end_together(tmp_path: Path, command: object, run_dir: str) -> None:
    (port,) = quiet_ports(1)
    assert callable(command)
    env = environment(tmp_path, port) | {
        "HOME": str(tmp_path),
        "RUN_DIR": str(tmp_path / run_dir),
        "SKYPILOT_NODE_IPS": "\n".join(NODES),
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
    }
    job = Program(command(tmp_path), tmp_path / "job.log", env, ROOT)
    try:
        job.until((tmp_path / "checkpoint.json").exists, "a step", LIMIT_S)
        kafka = KafkaSettings(bootstrap_servers=f"{NODES[0]}:{port}")
        async with Bus(kafka, client_id="test") as bus, bus.reader(BATCHES, start="beginning") as reader:
            states = [one.record.state async for one in reader.replay() if isinstance(one.record, BatchRecord)]
        assert BatchLifecycleState.FINALIZED in states
        logs = {one.name for one in (tmp_path / run_dir / "logs").iterdir()}
        assert {"broker.log", "coordinator.log", "trainer-1.log", "trainer-2.log", "taskset.log"} <= logs
        assert {"explorer-3-0.log", "explorer-3-1.log"} <= logs
        asked = set((tmp_path / run_dir / "torchrun").read_text().splitlines())
        where = f"--master-addr={NODES[1]} --master-port=29500 --max-restarts=0 -m workers.cli.app run trainer"
        assert asked == {f"--nnodes=2 --nproc-per-node=1 --node-rank={rank} {where}" for rank in range(2)}
        for one in job.family():
            # As at the time limit of a job: its tasks, and not ``srun``, which would kill them.
            if command_of(one).endswith(" deploy/node.sh") and os.getsid(one.pid) == one.pid:
                one.terminate()
        assert job.ended(LIMIT_S) != 0
    finally:
        job.kill()


def test_a_refused_setting_of_the_trainer_ends_its_node(tmp_path: Path) -> None:
    env = environment(tmp_path, 9093) | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NODES": " ".join(NODES),
        "NODE": "1",
        "GPUS": "0",
        "RUN_DIR": str(tmp_path / "run"),
    }
    job = Program(["bash", str(DEPLOY / "node.sh")], tmp_path / "job.log", env, ROOT)
    assert job.ended(240) == 78
    assert "trainer.checkpoint_dir is not set" in job.said()
    assert "WORLD_SIZE=2" in job.said()


def test_too_few_nodes_are_refused(tmp_path: Path) -> None:
    env = environment(tmp_path, 9093) | {"RUN_DIR": str(tmp_path / "run"), "SLURM_JOB_NODELIST": ",".join(NODES[:3])}
    job = Program(by_slurm(tmp_path), tmp_path / "job.log", env, ROOT)
    assert job.ended(60) == 78
    assert "a mesh with 2 trainer nodes needs 4 nodes or more: there are 3" in job.said()
