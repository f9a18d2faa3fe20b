"""Every recipe trains for two steps, with a tiny model and rows that stand in for its data; the mesh is real."""

import json
import os
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.waiting import wait_until
from tests.support.recipes import RECIPES, ROOT, stand_in
from tests.support.sampled import at_night
from trinity_bus.config import KafkaSettings
from trinity_bus.runtime.preload import Preload
from trinity_bus.runtime.supervisor import ServiceSpec, Supervisor
from trinity_bus.training.checkpoint import steps
from workers.demo.model import MAX_LENGTH, make_model
from workers.local import PlannedService, spec_of

LIMIT_S = 600.0
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(LIMIT_S + 60)]

TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }} {% endfor %}{{ '=' if add_generation_prompt else '' }}"
)
SMALL = {
    "mesh.dtype": "float32",
    "mesh.max_model_len": MAX_LENGTH,
    "mesh.max_tokens": 4,
    "coordinator.batch_size": 2,
    "coordinator.group_size": 2,
    "explorer.slots": 8,
    "explorer.max_num_seqs": 8,
    "explorer.cpu_kvcache_gib": 0.25,
    "trainer.total_steps": 2,
    "trainer.tensor_parallel": 1,
    "trainer.data_parallel": 1,
    "trainer.mini_batches": 1,
    "trainer.threads": 1,
}


KEY = "a-key-of-the-recipes"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("model"), seed=0)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def preloads(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Preload, Preload]]:
    """What trainers are forked from, and what all others: vLLM and Megatron are imported once for all recipes."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TRINITY_BUS_MESH__MODEL_PATH": str(model)}
    logs = tmp_path_factory.mktemp("preloads")

    def begin(name: str, *functions: str) -> Preload:
        return Preload.begin(functions, name=name, main="workers.cli.app:main", env=env, output=logs / f"{name}.log")

    with (
        begin("megatron", "trinity_bus.training.engines.megatron_engine", "workers.trainer.service") as trainers,
        begin("vllm", "trinity_bus.inference.launch:preload", "workers.explorer.service") as others,
    ):
        yield trainers, others


@pytest.mark.parametrize(
    "recipe", [path if path.name == "agent" else at_night(path) for path in RECIPES], ids=lambda path: path.name
)
def test_a_recipe_trains_for_two_steps(
    recipe: Path, kafka: KafkaSettings, model: Path, preloads: tuple[Preload, Preload], tmp_path: Path
) -> None:
    checkpoints, tasks, (port,) = tmp_path / "checkpoints", stand_in(recipe, tmp_path), quiet_ports(1)
    own = {
        "kafka.bootstrap_servers": kafka.bootstrap_servers,
        "mesh.namespace": f"test-{uuid.uuid4().hex[:12]}",
        "mesh.model_path": model,
        "trainer.checkpoint_dir": checkpoints,
        "taskset.path": tasks,
        "explorer.http_port": 0,
        "gateway.port": port,
        **SMALL,
    }
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TRINITY_BUS_EXPLORER__HTTP_KEY": KEY,
        "TRINITY_BUS_GATEWAY__API_KEYS": KEY,
        "GATEWAY_URL": f"http://127.0.0.1:{port}",
        "GATEWAY_KEY": KEY,
        "TASKS": str(tasks),
        "RUNS": "2",
    }

    def service(name: str, *, called: str = "", **more: object) -> ServiceSpec:
        options = [part for path, value in (own | more).items() for part in ("--set", f"{path}={value}")]
        one = PlannedService(called or name, [*options, "run", name], stage=int(name != "coordinator"))
        spec = spec_of(one, recipe / "mesh.toml", env, forked_from=preloads[name != "trainer"])
        return replace(spec, again=False)

    services = [service("trainer"), service("coordinator"), service("explorer")]
    if recipe.name == "agent":
        program = [sys.executable, "-m", "recipes.agent.agent"]
        services += [service("gateway"), ServiceSpec(name="agent", command=program, env=env, stage=2)]
    else:
        services.append(service("taskset"))
    if recipe.name == "distillation":
        teacher = {"explorer.name": "teacher-0", "explorer.pool": "teacher", "explorer.follows": "none"}
        services.append(service("explorer", called="teacher", **teacher))
    with Supervisor(tmp_path) as supervisor:
        for spec in services:
            supervisor.launch(spec)

        def trained() -> bool:
            for preload in preloads:
                preload.look()
            supervisor.check()
            return 2 in steps(checkpoints)

        wait_until(trained, "second step", LIMIT_S, every_s=0.1)
