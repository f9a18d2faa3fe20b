"""Every recipe trains for two steps, with a tiny model and rows that stand in for its data; the mesh is real."""

import json
import os
import uuid
from pathlib import Path

import pytest

from tests.support.mesh.waiting import wait_until
from tests.support.recipes import RECIPES, ROOT, stand_in
from trinity_bus.config import KafkaSettings
from trinity_bus.training.checkpoint import steps
from workers.demo.model import MAX_LENGTH, make_model
from workers.demo.settings import command
from workers.demo.supervisor import ServiceSpec, Supervisor

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


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_a_recipe_trains_for_two_steps(recipe: Path, kafka: KafkaSettings, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", seed=0)
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    checkpoints = tmp_path / "checkpoints"
    own = {
        "kafka.bootstrap_servers": kafka.bootstrap_servers,
        "mesh.namespace": f"test-{uuid.uuid4().hex[:12]}",
        "mesh.model_path": model,
        "trainer.checkpoint_dir": checkpoints,
        "taskset.path": stand_in(recipe, tmp_path),
        **SMALL,
    }
    options = [part for path, value in own.items() for part in ("--set", f"{path}={value}")]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with Supervisor(tmp_path) as supervisor:
        for service in ("coordinator", "trainer", "explorer", "taskset"):
            started = command("--config", str(recipe / "mesh.toml"), *options, "run", service)
            supervisor.launch(ServiceSpec(name=service, command=started, env=env, stage=service != "coordinator"))

        def trained() -> bool:
            supervisor.check()
            return 2 in steps(checkpoints)

        wait_until(trained, "second step", LIMIT_S, every_s=0.1)
