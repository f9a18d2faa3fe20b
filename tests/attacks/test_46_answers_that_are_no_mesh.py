"""What is typed into the console's forms, and lies where it points: each is told as a problem, and none is a fault."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from tests.support.console.site import TOKEN, console
from tests.support.mesh.waiting import until
from tests.unit.console.test_configuration_pages import CONFIG, local_run, page, stand_in
from trinity_bus.runtime import supervisor
from trinity_bus.runtime.supervisor import Activity, Supervisor
from trinity_bus.training.errors import ConversionError
from trinity_bus.training.families import read_shape
from workers.console.configuration import _CHECKS as CHECKS
from workers.console.draft import Checks, draft_of
from workers.console.local_mesh import LocalMesh

HUGE = str(10**4000)
ANSWERS = [
    *[(path, HUGE) for path in ("mesh.max_model_len", "explorer.max_num_seqs", "trainer.micro_batch_tokens")],
    ("trainer.lora_rank", HUGE),
    *[("explorer.cpu_kvcache_gib", text) for text in ("inf", "nan", "1e308")],
    ("trainer.objective_options", "[" * 9000),
    ("trainer.stages", "[" * 9000),
    *[("rows.path", text) for text in ("/etc/a**b", "/etc/" + "a" * 5000, "/etc/" + "*a" * 5000, "/etc/a\0b*")],
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.mark.parametrize(("path", "text"), ANSWERS)
@pytest.mark.parametrize("gpus", ["0", "4"])
def test_an_answer_that_is_none_is_a_problem(path: str, text: str, gpus: str, model: Path) -> None:
    more = {"rows.prompt": "question", "rows.workflow": "math"} if path == "rows.path" else {}
    wanted = {"mesh.model_path": str(model), "trainer.checkpoint_dir": str(model), **more}
    wanted |= {"hardware.trainer_gpus": gpus, "hardware.explorer_gpus": gpus, path: text}
    checks: Checks = CHECKS
    for lay_out in (False, True):
        assert checks(draft_of(wanted), lay_out=lay_out).of(path)


@pytest.mark.parametrize("name", [name for name in CONFIG if name != "model_type"])
@pytest.mark.parametrize("value", [0, -1, 10**400, float("inf"), float("nan"), 10**12])
def test_a_model_of_impossible_sizes_is_none(name: str, value: float, tmp_path: Path) -> None:
    if name in {"rms_norm_eps", "rope_theta"} and 0 < value < float("inf"):
        value = 10**400
    elif name in {"num_key_value_heads", "head_dim"} and value == 0:
        # As if it were not there: it follows from others.
        value = -2
    config = {**CONFIG, name: value}
    if name == "num_attention_heads":
        del config["head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConversionError):
        read_shape(tmp_path)


@pytest.mark.parametrize("kind", ["a pipe", "large", "deep"])
def test_a_configuration_that_never_ends_is_not_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "large":
            path.write_bytes(b" " * (16 << 20) + json.dumps(CONFIG).encode())
        case _:
            path.write_text("[" * 100_000)
    with pytest.raises(ConversionError):
        read_shape(tmp_path)


async def test_only_who_sits_at_this_machine_starts_a_mesh_on_it(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers = {"mesh.model_path": str(model), "trainer.checkpoint_dir": str(tmp_path / "c"), "mesh.namespace": "mine"}
    async with console(tmp_path / "index", token=SecretStr(TOKEN)) as client:
        # A proxy on this machine, for browsers elsewhere: they name the host that they know.
        client.session.headers["Host"] = "console.example"
        said = await page(client, "/configuration/run", answers, status=400)
        assert "this machine" in said
        assert not (tmp_path / "runs").exists()


async def test_a_second_run_while_one_runs_leaves_nothing_behind(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalMesh, "start", lambda *_: pytest.fail("it was started"))
    monkeypatch.setattr(LocalMesh, "is_busy", True)
    answers = {"mesh.model_path": str(model), "trainer.checkpoint_dir": str(tmp_path / "c"), "mesh.namespace": "mine"}
    async with console(tmp_path / "index", token=SecretStr(TOKEN)) as client:
        assert "runs already" in await page(client, "/configuration/run", answers, status=400)
        assert not (tmp_path / "runs").exists()
        # A folder that cannot be made.
        monkeypatch.setattr(LocalMesh, "is_busy", False)
        (tmp_path / "runs").write_text("no folder")
        assert "cannot be written" in await page(client, "/configuration/run", answers, status=400)


async def test_a_mesh_whose_logs_cannot_be_written_says_so(tmp_path: Path) -> None:
    mesh = LocalMesh(stand_in)
    (tmp_path / "logs").write_text("no folder")
    mesh.start(local_run(tmp_path, "pass"))
    await until(lambda: mesh.state == "ended", 60)
    assert "logs" in mesh.why


def test_who_looks_while_services_come_sees_those_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Supervisor(tmp_path)
    stand_ins: dict[str, Any] = {"one": SimpleNamespace(log=tmp_path / "one.log")}
    watched._services = stand_ins

    def comes(name: str, log: Path) -> Activity:
        stand_ins[name + "+"] = SimpleNamespace(log=log)
        return Activity(name, "starting", 0.0)

    monkeypatch.setattr(supervisor, "activity_of", comes)
    assert [one.name for one in watched.activities()] == ["one"]
