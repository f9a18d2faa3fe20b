"""The pages that ask for settings, without a broker: who is asked, what is said, files, and a mesh of stand-ins."""

import json
import re
import sys
import tomllib
from collections.abc import AsyncIterator, Sequence
from html import unescape
from pathlib import Path

import pytest

from tests.support.console.site import TOKEN, VIEWERS, Client, console, with_tokens
from tests.support.mesh.waiting import until
from tests.support.narrowing import some
from workers.console.local_mesh import LocalMesh, LocalRun
from workers.local import PlannedService

CONFIG = {
    "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "max_position_embeddings": 2048,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return folder


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Client]:
    async with with_tokens(tmp_path / "index") as client:
        yield client


type Form = dict[str, str]


async def page(client: Client, path: str, form: Form | None = None, *, token: str = TOKEN, status: int = 200) -> str:
    headers = {"Authorization": f"Bearer {token}"}
    if form is None:
        async with client.get(path, headers=headers) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text
    own = await page(client, "/configuration", token=token)
    proof = some(re.search(r'name="proof" value="([^"]+)"', own))
    async with client.post(path, headers=headers, data={**form, "proof": proof[1]}, allow_redirects=False) as answer:
        text = await answer.text()
        assert answer.status == status, text
        return text


async def test_questions_are_answered_and_become_files(operator: Client, model: Path) -> None:
    first = await page(operator, "/configuration")
    assert "Which model is to learn?" in first
    answers = {"mesh.model_path": str(model), "trainer.checkpoint_dir": "checkpoints"}
    told = unescape(await page(operator, "/configuration", answers))
    assert "Nothing is wrong" in told
    assert "B x " in told
    assert tomllib.loads(await page(operator, "/configuration/mesh.toml", answers))["mesh"]["model_path"] == str(model)

    wrong = {**answers, "mesh.max_model_len": "4096", "mesh.namespace": '"><script>alert(1)</script>'}
    told = await page(operator, "/configuration", wrong)
    assert "<script>alert" not in told
    assert "Not yet" in told
    await page(operator, "/configuration/mesh.toml", wrong, status=400)
    raw = await page(operator, "/configuration?mode=expert&from=beginner", wrong)
    assert not re.search(r"\sstyle=|\son\w+=|<script(?! src=)", raw)
    expert = unescape(raw)
    assert 'name="trainer.tensor_parallel"' in expert
    assert 'name="kafka.sasl_password"' not in expert
    assert "TRINITY_BUS_KAFKA__SASL_PASSWORD_FILE" in expert
    assert 'value="4096"' in expert
    await page(operator, "/configuration", {"kafka.sasl_password": "hunter2"}, status=400)


async def test_paths_are_looked_at_for_operators_or_whoever_is_alone(operator: Client, tmp_path: Path) -> None:
    assert "Only an operator" in await page(operator, "/configuration", token=VIEWERS, status=403)
    async with console(tmp_path / "index") as alone:
        first = await page(alone, "/configuration")
        assert "Run it here" not in first
        await page(alone, "/configuration/run", {"mesh.model_path": "/nowhere"}, status=403)


def stand_in(*arguments: str) -> Sequence[str]:
    """Run Python in the place of a service: the last argument is what it does."""
    return [sys.executable, "-c", arguments[-1]]


def local_run(folder: Path, *programs: str) -> LocalRun:
    plan = [PlannedService(f"service-{number}", [program]) for number, program in enumerate(programs)]
    return LocalRun(namespace="mine", folder=folder, plan=plan, env={})


async def test_a_service_that_is_given_up_ends_the_others_and_says_why(tmp_path: Path) -> None:
    mesh = LocalMesh(stand_in)
    mesh.start(local_run(tmp_path, "import time; time.sleep(600)", "print('no model there'); raise SystemExit(78)"))
    await until(lambda: mesh.state == "ended", 60)
    assert "no model there" in mesh.why
    assert "service-1" in mesh.why
    await mesh.stop()
