"""Every checkpoint of a run answers the same evaluations: real Kafka, real vLLM."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mesh.mesh import environment
from trinity_bus.config import KafkaSettings
from workers.demo.model import make_model

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(600)
def test_every_checkpoint_is_evaluated_and_what_is_known_already_is_not_asked_again(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    for step in (4, 8):
        folder = make_model(tmp_path / "checkpoints" / f"step-{step:08d}", seed=step)
        (folder / "progress.json").write_text("{}")
    lines = [{"workflow": "sequence", "prompt": f"copy {i} =", "answer": f"{i}", "task_id": f"t{i}"} for i in range(3)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sets = '[[eval]]\nname = "copy"\npath = "tasks.jsonl"\nrepeat_times = 2\nsampling = { temperature = 1.0 }\n'
    (tmp_path / "tasks.toml").write_text(sets)
    given = {"max_model_len": 64, "max_tokens": 4, "dtype": "float32"}
    env = environment(kafka, **{f"mesh__{name}": value for name, value in given.items()})
    found = tmp_path / f"bench-{os.getpid()}"
    arguments = [str(tmp_path / "checkpoints"), "--tasks", str(tmp_path / "tasks.toml"), "--run-dir", str(found)]
    command = [sys.executable, "-m", "workers.cli.app", "bench", *arguments]
    # As an earlier one has left it that was ended after the first checkpoint.
    names = {f"eval/copy/reward/{name}@2" for name in ("mean", "std", "best", "worst")}
    known = dict.fromkeys(sorted(names), 0.25)
    found.mkdir()
    (found / "bench.json").write_text(json.dumps({"4": known}))
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((found / "bench.json").read_text())
    assert results.keys() == {"4", "8"}
    assert results["4"] == known
    assert names <= results["8"].keys()
    assert 0 <= results["8"]["eval/copy/reward/worst@2"] <= results["8"]["eval/copy/reward/best@2"] <= 1
    assert (found / "bench.png").stat().st_size > 0
    assert "copy mean@2" in done.stdout
    assert "checkpoint 1 of 1" in " ".join((done.stdout + done.stderr).split())
