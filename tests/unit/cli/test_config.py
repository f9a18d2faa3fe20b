"""``trinity-bus config``: a file is written, shown with where its values come from, and checked as services would."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from trinity_bus.config import Settings, secret_variables, setting_fields
from trinity_bus.config.template import SCHEMA, json_schema, template
from trinity_bus.runtime.device import is_installed_for_cpu
from workers.demo.model import make_model

type Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(no_settings: None, tmp_path: Path) -> Run:
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-c", "from workers.cli.app import main; main()", *arguments]
        env = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(Path(__file__).parents[3]), **variables}
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def test_a_new_file_has_each_setting_by_default(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("config", "init")
    assert done.returncode == 0, done.stderr
    file = tmp_path / "mesh.toml"
    text = file.read_text()
    assert text == template()
    assert text.splitlines()[0] == f"#:schema {SCHEMA.as_uri()}"
    given = tomllib.loads(re.sub(r"^#(\w+) =.*$", r"\1 = 0", text, flags=re.MULTILINE))
    assert {f"{table}.{name}" for table, content in given.items() for name in content} == set(setting_fields())
    monkeypatch.setenv("TRINITY_BUS_CONFIG", str(file))
    untouched = Settings()
    # What is unset by default has no value to be taken.
    file.write_text(re.sub(r"^#(\w+ = .)", r"\1", text, flags=re.MULTILINE))
    assert Settings() == untouched
    assert len(tomllib.loads(file.read_text())["coordinator"]) > 15
    again = run("config", "init")
    assert again.returncode == 2
    assert "mesh.toml is there already; --force replaces it" in again.stderr


def test_every_value_is_shown_with_where_it_comes_from_and_no_secret_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        "[mesh]\nmodel = 'of-file'\nnamespace = 'of-file'\n[kafka]\nsasl_password = 'hunter2'\n[trainer]\nseed = 3\n"
    )
    (tmp_path / "m.toml").chmod(0o600)
    password = tmp_path / "password"
    password.write_text("hunter3")
    given = {
        "TRINITY_BUS_CONFIG": "other.toml",
        "TRINITY_BUS_MESH__NAMESPACE": "of-environment",
        "TRINITY_BUS_TRAINER__SEED": "4",
        "TRINITY_BUS_ACCESS__ADMIN_PASSWORD_FILE": str(password),
    }
    done = run("--config", "m.toml", "--set", "trainer.seed=5", "config", "show", "--json", **given)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert set(shown) == set(setting_fields())
    assert shown["mesh.model"] == {"value": "of-file", "from": "m.toml:2"}
    assert shown["mesh.namespace"] == {"value": "of-environment", "from": "TRINITY_BUS_MESH__NAMESPACE"}
    assert shown["trainer.seed"] == {"value": 5, "from": "--set trainer.seed"}
    assert shown["coordinator.tick_s"] == {"value": 0.25, "from": "default"}
    assert shown["kafka.sasl_password"] == {"value": "(set)", "from": "m.toml:5"}
    assert shown["access.admin_password"]["from"] == "TRINITY_BUS_ACCESS__ADMIN_PASSWORD_FILE"
    table = run("--config", "m.toml", "config", "show", **given)
    assert "hunter" not in done.stdout + table.stdout + table.stderr
    assert re.search(r"kafka.sasl_password +\(set\) +m.toml:5", table.stdout)


def test_all_that_is_wrong_is_told_at_once(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mesh.toml"
    file.write_text("[mesh]\nmodell = 'm'\n[coordinator]\nbatch_size = 0\n")
    done = run("--config", "mesh.toml", "config", "check")
    assert (done.returncode, [line.partition(": ")[0] for line in done.stderr.splitlines()]) == (
        2,
        ["mesh.toml:2", "mesh.toml:4"],
    )
    file.write_text("[mesh]\ndtype = 'float16'\n[coordinator]\nmax_staleness = 0\n[synchronizer]\nsync_interval = 2\n")
    done = run("--config", "mesh.toml", "config", "check")
    assert done.returncode == 2
    said = done.stderr.splitlines()
    assert "mesh.dtype (mesh.toml:2) is float16: the trainer trains in bfloat16 or float32" in said
    assert "trainer.checkpoint_dir is not set: it is needed to go on after a restart" in said
    assert len([line for line in said if "set coordinator.max_staleness (mesh.toml:4) to 1 or more" in line]) == 1, said
    done = run("config", "check", "coordinator")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not is_installed_for_cpu(), reason="models are computed on GPUs here")
def test_what_services_need_of_memory_is_told_and_what_never_fits_is_refused(run: Run, tmp_path: Path) -> None:
    model, mesh = make_model(tmp_path / "model", seed=0), tmp_path / "mesh.toml"
    mesh.write_text(
        "[mesh]\nmodel_path = 'model'\nmax_model_len = 64\nmax_tokens = 4\n[trainer]\ncheckpoint_dir = 'c'\n"
    )
    done = run("--config", "mesh.toml", "config", "check")
    assert done.returncode == 0, done.stderr
    assert re.search(r"trainer \d\.\d, coordinator 0\.3, explorer \d\.\d, kafka 0\.\d: ", done.stdout + done.stderr)
    done = run("--config", "mesh.toml", "config", "check", "--limits", "trainer", "explorer")
    assert re.fullmatch(r"TRAINER_MEMORY=\d+m\nEXPLORER_MEMORY=\d+m\n", done.stdout), done.stderr
    assert "left out of training" not in done.stderr
    servers = ("explorer.engine_url=http://127.0.0.1:1", "synchronizer.sync_method=checkpoint")
    asked = [word for one in servers for word in ("--set", one)]
    done = run("--config", "mesh.toml", *asked, "config", "check")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("top_k or min_p are left out of training unless the servers tell which") == 1
    done = run("--config", "mesh.toml", *asked, "--set", "trainer.limited_sampling=train", "config", "check")
    assert "left out of training" not in done.stderr
    tokens = ("--set", "trainer.micro_batch_tokens=1000000000")
    done = run("--config", "mesh.toml", *tokens, "config", "check")
    assert done.returncode == 2
    assert re.search(r"are free: set .*trainer\.micro_batch_tokens to auto$", done.stderr.strip())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10_000_000}))
    done = run("--config", "mesh.toml", "config", "check")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "train adapters (trainer.lora_rank), take a smaller model" in done.stderr


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("coordinator.batchsize=3", "coordinator.batchsize is not a setting; did you mean coordinator.batch_size?"),
        ("coordinator.batch_size", "expected SETTING=VALUE"),
        ("kafka.sasl_password=x", "kafka.sasl_password is a secret, and others see command lines"),
    ],
)
def test_an_option_that_sets_nothing_is_refused(run: Run, option: str, complaint: str) -> None:
    done = run("--set", option, "config", "show")
    assert done.returncode == 2
    assert complaint in " ".join(done.stderr.replace("│", " ").split())


def test_editors_are_told_of_every_setting() -> None:
    schema = json_schema()
    found = {
        f"{section}.{name}"
        for section, field in schema["properties"].items()
        for name in schema["$defs"][field["$ref"].rpartition("/")[2]]["properties"]
    }
    assert found == set(setting_fields())
    assert schema["additionalProperties"] is False
    assert "null" not in SCHEMA.read_text()
    assert len(secret_variables()) == SCHEMA.read_text().count('"writeOnly": true')
