"""Models by their names on a hub, which is a server on this machine that speaks the few endpoints that are asked."""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from typer.testing import CliRunner

from tests.support.fakes.tiny_trainer import write_model
from trinity_bus import hub
from trinity_bus.bus import LogIdentity
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.config.mesh import MeshSettings
from trinity_bus.config.sections import Sections
from trinity_bus.errors import ConfigError
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import STATE, TrainingProgress, WrittenBy
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.families import read_shape
from workers.cli.training.checkpoints import app as checkpoints
from workers.trainer.engines import load_engine

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "org/tiny"


def digest(content: bytes) -> str:
    """As git names contents."""
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


class FakeHub(ThreadingHTTPServer):
    """FAKE: a model hub with one repository, ``org/tiny``, at one commit."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.made: dict[str, Any] = {}
        self.committed: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def say(self, status: int, content: object = b"", **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path, files = unquote(urlsplit(self.path).path), self.server.files
        self.server.asked.append(path)
        if path in {f"/api/models/{NAME}/revision/{name}" for name in ("main", COMMIT)}:
            self.say(200, {"id": NAME, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]})
        elif path == f"/api/models/{NAME}/tree/{COMMIT}":
            oids = {name: digest(content) for name, content in files.items()}
            self.say(200, [{"type": "file", "path": n, "size": len(c), "oid": oids[n]} for n, c in files.items()])
        elif path.startswith(prefix := f"/{NAME}/resolve/{COMMIT}/"):
            content = files[path.removeprefix(prefix)]
            self.say(200, content, ETag=f'"{digest(content)}"', X_Repo_Commit=COMMIT)
        else:
            self.say(404, {"error": "not found"}, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")

    do_HEAD = do_GET  # noqa: N815 - the server's name for it

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers["Content-Length"] or 0)) if "Content-Length" in self.headers else b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        self.server.asked.append(path)
        if path == "/api/repos/create":
            self.server.made |= json.loads(body)
            self.say(200, {"url": f"{self.server.url}/{NAME}"})
        elif "/branch/" in path:
            self.server.made["branch"] = path.rpartition("/")[2]
            self.say(200, {})
        elif "/preupload/" in path:
            names = [one["path"] for one in json.loads(body)["files"]]
            self.say(200, {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        elif "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.committed[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.say(200, {"commitUrl": f"{self.server.url}/{NAME}/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self.say(404, {"error": "not found"})


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    from huggingface_hub import constants

    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def filled(fake: FakeHub, model: Path) -> FakeHub:
    fake.files = {path.name: path.read_bytes() for path in model.iterdir()}
    fake.files |= {"pytorch_model.bin": b"pickled", "code.py": b"import os", "onnx/config.json": b"{}"}
    return fake


@pytest.mark.parametrize("name", [NAME, f"{NAME}@main", f"{NAME}@{COMMIT}"])
def test_a_name_is_fetched_once_and_nothing_that_is_not_read(fake: FakeHub, model: Path, name: str) -> None:
    filled(fake, model)
    folder = hub.model_folder(name, weights=True)
    assert read_shape(folder) == read_shape(model)
    assert {path.name for path in folder.iterdir()} == {path.name for path in model.iterdir()}
    assert hub.source_of(folder) == f"{NAME}@{COMMIT}"
    fake.asked.clear()
    assert hub.model_folder(name, weights=True) == folder
    assert hub.model_folder(name, weights=False, fetch=False) == folder
    assert fake.asked == []


def test_weights_are_fetched_when_they_are_needed_and_what_is_cached_needs_no_hub(
    fake: FakeHub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    filled(fake, model)
    with pytest.raises(hub.NotCachedError):
        hub.model_folder(NAME, weights=False, fetch=False)
    assert fake.asked == [], "a page has nothing fetched"
    folder = hub.model_folder(NAME, weights=False)
    assert not (folder / "model.safetensors").exists()
    assert hub.model_folder(NAME, weights=True) == folder
    assert (folder / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.model_folder(NAME, weights=True) == folder
    with pytest.raises(ConfigError, match="org/other is no folder, and cannot be had from the hub"):
        hub.model_folder("org/other", weights=True)


@pytest.mark.parametrize("left", [{"config.json": b"{}"}, {"model.Q4.gguf": b""}, {"pytorch_model.bin": b""}])
def test_a_repository_without_a_model_is_refused(fake: FakeHub, left: dict[str, bytes]) -> None:
    fake.files = left
    with pytest.raises(ConfigError, match=r"org/tiny: the repository lacks config\.json and model\.safetensors"):
        hub.model_folder(NAME, weights=True)


def test_a_folder_stays_a_folder(fake: FakeHub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    shutil.copytree(model, "org/tiny")
    assert hub.model_folder("org/tiny", weights=True) == Path("org/tiny")
    for name in ("/no/such", "./no/such", "../such", "such", "org/tiny/deeper", "org/tiny@../../x", "~nobody-here/x"):
        assert hub.model_folder(name, weights=True) == Path(name)
    assert hub.model_folder("~/models", weights=True) == Path.home() / "models"
    assert hub.source_of(model) is None
    assert fake.asked == []


@pytest.mark.parametrize("given", ["model.gguf", "folder"])
def test_a_gguf_is_refused_with_the_line_that_converts_it(tmp_path: Path, given: str) -> None:
    folder = tmp_path / "folder of two words"
    folder.mkdir()
    (folder / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"model\.gguf is a GGUF") as refused:
        hub.checked(str(folder / given if given != "folder" else folder))
    line = str(refused.value).partition("accelerate): ")[2].replace("python ", f"{sys.executable} ", 1)
    # What it would do is put aside: the words reach Python as they are meant.
    line = line.replace(", transformers as t;", ";", 1).replace("g = dict", "print([d, f, o]); sys.exit(); g = dict", 1)
    said = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)
    assert said.stdout.strip() == str([str(folder), "model.gguf", f"{folder}/model"]), said.stderr


def test_services_get_folders(fake: FakeHub, model: Path) -> None:
    filled(fake, model)
    given = Sections(mesh=MeshSettings(model_path=f"{NAME}@{COMMIT}"))
    settings = hub.located(given, "mesh", "trainer", "explorer")
    folder = str(hub.model_folder(f"{NAME}@{COMMIT}", weights=True, fetch=False))
    assert COMMIT in folder
    assert {settings.mesh.model_path, settings.trainer.model_path, settings.explorer.model_path} == {folder}
    assert settings.gateway.model_path == f"{NAME}@{COMMIT}"


@pytest.mark.parametrize("branch", [None, "tuned"])
def test_a_checkpoint_is_pushed(
    fake: FakeHub, model: Path, tmp_path: Path, branch: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    directory = tmp_path / "checkpoints"
    folder = checkpoint.begin(directory, 3)
    for path in model.iterdir():
        shutil.copyfile(path, folder / path.name)
    (folder / STATE).write_bytes(b"the optimizer's")
    checkpoint.commit(directory, TrainingProgress(step=3), WrittenBy(dtype="torch.float32"), keep=3)
    more = [] if branch is None else ["--branch", branch]
    done = CliRunner().invoke(checkpoints, ["push", "3", NAME, "--dir", str(directory), *more])
    assert done.exit_code == 0, done.output
    assert f"The model is {NAME}@{COMMIT}." in done.output
    assert (fake.made["visibility"], fake.made.get("branch")) == ("private", branch)
    assert fake.committed.keys() == {path.name for path in model.iterdir()}
    assert fake.committed["model.safetensors"] == (model / "model.safetensors").read_bytes()


def test_a_hub_that_refuses_is_told(fake: FakeHub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del fake
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for name in ("no-organization", "org/x@main", "../x"):
        with pytest.raises(ConfigError, match="is no organization/name"):
            hub.push(model, name, branch=None, public=False, message="x")
    monkeypatch.setattr(Handler, "do_POST", lambda self: self.say(403, {"error": "you may not"}))
    with pytest.raises(ConfigError, match=r"org/tiny cannot be written to the hub: .*403"):
        hub.push(model, NAME, branch=None, public=False, message="x")


def test_checkpoints_say_which_model_training_began_with(fake: FakeHub, model: Path, tmp_path: Path) -> None:
    filled(fake, model)
    folder = hub.model_folder(NAME, weights=True)
    identity = LogIdentity(cluster="cluster", topic="topic")
    kept = tmp_path / "checkpoints"

    def trainer(start: Path, checkpoints: Path) -> TrainingEngine:
        mesh = MeshSettings(model_path=str(start))
        settings = Settings(mesh=mesh, trainer=TrainerSettings(engine="torch", model_path=str(start)))
        return load_engine(settings, checkpoints, None, identity)

    began = trainer(folder, kept)
    assert began.progress.source == f"{NAME}@{COMMIT}"
    written = began.save_checkpoint(kept, began.progress).result()
    assert checkpoint.read_progress(written, TorchEngine.written_by(TrainerSettings())).source == f"{NAME}@{COMMIT}"
    # Another run begins with that checkpoint: the model still is what it was.
    assert trainer(written, tmp_path / "more").progress.source == f"{NAME}@{COMMIT}"
    assert trainer(model, tmp_path / "other").progress.source is None
