"""A run that somebody has handed on: what is in its folder is read, is not run, and writes nothing outside."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
import typer

from trinity_bus.broker import embedded, node
from trinity_bus.broker.layout import Folder, State, write_configuration, write_state
from trinity_bus.broker.node import claim
from trinity_bus.config import BrokerSettings, KafkaSettings, Settings
from trinity_bus.errors import ConfigError, DataFolderUnusableError
from trinity_bus.runtime.plain_files import NotPlainError, ensure_plain, open_plain, read_plain, within, write_plain
from trinity_bus.runtime.process import Child
from trinity_bus.telemetry import load_spans
from workers.bench import RESULTS, read_results, write_results
from workers.cli import console_command

MESH = """
[mesh]
namespace = "theirs"
model = "their-model"
model_path = "/their/machine/initial-model"
max_tokens = 7
[broker]
cache_dir = "/theirs/cache"
heap_mib = 4096
[console]
host = "0.0.0.0"
port = 1
token = "a token that they know"
folder = "/theirs/index"
jaeger_url = "http://theirs"
[telemetry]
run_dir = "/theirs/run"
[kafka]
bootstrap_servers = "theirs:9092"
[explorer]
workflow_modules = "their.code"
"""


class NoBroker:
    """Stands in for the embedded broker, which takes seconds to start; keeps what it was given."""

    given: BrokerSettings

    def __init__(self, settings: BrokerSettings) -> None:
        type(self).given = settings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs."""

    def kafka_settings(self, base: KafkaSettings) -> KafkaSettings:
        return base.model_copy(update={"bootstrap_servers": "127.0.0.1:9"})


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("trinity_bus.broker.EmbeddedBroker", NoBroker)
    folder = tmp_path / "run"
    (folder / "broker").mkdir(parents=True)
    (folder / "initial-model").mkdir()
    (folder / "mesh.toml").write_text(MESH)
    return folder


def reopened(run_dir: Path) -> Settings:
    with ExitStack() as stack:
        return console_command._reopened(run_dir, stack)


def test_of_a_runs_settings_only_what_reading_needs_is_taken(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_BUS_CONSOLE__TOKEN", "a token of my own")
    monkeypatch.setenv("TRINITY_BUS_BROKER__CACHE_DIR", "/mine")
    found, mine = reopened(run_dir), Settings()
    assert (found.kafka.namespace, found.mesh.model) == ("theirs", "their-model")
    assert found.console.model_path == str(run_dir / "initial-model")
    assert NoBroker.given == mine.broker.model_copy(update={"port": 0, "data_dir": run_dir / "broker"})
    model = {"namespace": "theirs", "model": "their-model", "model_path": str(run_dir / "initial-model")}
    assert found.mesh == mine.mesh.model_copy(update=model)
    assert found.console == mine.console.model_copy(update={"model_path": str(run_dir / "initial-model")})
    assert found.telemetry == mine.telemetry
    assert found.explorer.workflow_modules == mine.explorer.workflow_modules


def test_a_file_that_the_user_has_named_counts_and_the_runs_does_not(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text("[console]\nport = 8123\n")
    monkeypatch.setenv("TRINITY_BUS_CONFIG", str(tmp_path / "mine.toml"))
    assert reopened(run_dir).console.port == 8123


def test_links_of_a_run_are_not_followed(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    (run_dir / "initial-model" / "tokenizer.json").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match=r"tokenizer\.json: it is a link"):
        reopened(run_dir)
    (run_dir / "mesh.toml").unlink()
    (run_dir / "mesh.toml").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match="it is a link"):
        reopened(run_dir)
    (run_dir / "broker").rmdir()
    (run_dir / "broker").symlink_to(tmp_path)
    with pytest.raises(typer.BadParameter):
        reopened(run_dir)


@pytest.mark.parametrize("content", ["[" * 100_000, "a = " + "9" * 5000, "x" * (2 << 20)])
def test_settings_of_a_run_that_cannot_be_read_are_a_line(run_dir: Path, content: str) -> None:
    (run_dir / "mesh.toml").write_text(content)
    with pytest.raises(ConfigError, match=r"mesh\.toml"):
        reopened(run_dir)


@pytest.mark.parametrize("place", ["kafka/trinity.tasks-0", "logs/server.log", "tmp", "server.properties"])
def test_a_broker_does_not_start_where_links_lead_out(tmp_path: Path, place: str) -> None:
    folder, mine = Folder(tmp_path / "broker"), tmp_path / "mine"
    with claim(folder):
        """It is a broker's folder."""
    mine.mkdir()
    link = folder.root / place
    if link.is_dir():
        link.rmdir()
    link.symlink_to(mine)
    with pytest.raises(DataFolderUnusableError, match="it is a link"), claim(folder):
        pass


def test_a_lock_that_is_a_link_makes_no_file_elsewhere(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "broker")
    folder.root.mkdir()
    folder.lock.symlink_to(tmp_path / "new")
    with pytest.raises(DataFolderUnusableError), claim(folder):
        pass
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_broker_does_not_start_on_what_another_user_can_change(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "broker")
    with claim(folder):
        os.chown(folder.logs, 12345, 12345)
    with pytest.raises(DataFolderUnusableError, match="belongs to user 12345"), claim(folder):
        pass


def test_files_of_a_broker_are_replaced_and_not_written_through(tmp_path: Path) -> None:
    folder, mine = Folder(tmp_path / "broker"), tmp_path / "mine"
    mine.write_text("mine")
    with claim(folder):
        for path in (folder.state, folder.properties, folder.log4j):
            path.symlink_to(mine)
        for path in (folder.state, folder.properties):
            path.with_suffix(".new").symlink_to(mine)
        write_state(folder, State(1, 1, 1, background=False))
        write_configuration(folder, port=1, controller_port=2, fsync=False)
    assert mine.read_text() == "mine"
    assert not folder.properties.is_symlink()


def test_only_a_start_up_archive_that_was_made_here_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = node.archive_path(tmp_path / "cache")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"bytecode of somebody")
    assert node.archive_options(tmp_path / "cache") == []
    node._remember(path)
    assert node.archive_options(tmp_path / "cache") == [f"-XX:AOTCache={path}"]
    path.write_bytes(b"bytecode of somebody else")
    assert node.archive_options(tmp_path / "cache") == []


def test_a_log_that_is_a_link_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "explorer.log").symlink_to(tmp_path / "bashrc")
    with pytest.raises(OSError, match="symbolic link"):
        Child([sys.executable, "-c", "print('run me')"], output=tmp_path / "explorer.log")
    assert not (tmp_path / "bashrc").exists()


def test_results_of_a_bench_are_read_as_data_and_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / RESULTS).symlink_to(tmp_path / "mine")
    with pytest.raises(NotPlainError):
        read_results(tmp_path)
    write_results(tmp_path, {1: {"reward": 0.5}})
    assert (tmp_path / "mine").read_text() == "mine"
    assert read_results(tmp_path) == {1: {"reward": 0.5}}
    for wrong in ('{"1": {"reward": "x"}}', "[" * 100_000, "[]"):
        (tmp_path / RESULTS).write_text(wrong)
        with pytest.raises(ConfigError, match=RESULTS):
            read_results(tmp_path)


def test_traces_of_a_run_are_plain_files(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.jsonl").write_text("[" * 100_000 + '\n{"resourceSpans": 1}\n{"resourceSpans": [[]]}\n')
    assert load_spans(tmp_path) == []
    for wrong in ("/dev/zero", "/etc/passwd"):
        link = tmp_path / "traces" / "b.jsonl"
        link.symlink_to(wrong)
        with pytest.raises(NotPlainError):
            load_spans(tmp_path)
        link.unlink()


def test_whoever_reads_a_plain_file_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotPlainError, match="no regular file"):
        open_plain(tmp_path / "pipe")
    with pytest.raises(NotPlainError, match="neither"):
        ensure_plain(tmp_path)
    write_plain(tmp_path / "file", "12345")
    with pytest.raises(NotPlainError, match="larger than 4"):
        read_plain(tmp_path / "file", 4)
    assert read_plain(tmp_path / "file", 5) == b"12345"


def test_a_file_with_a_second_name_is_not_of_the_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "folder" / "00000000.log").hardlink_to(tmp_path / "mine")
    with pytest.raises(NotPlainError, match="second name"):
        ensure_plain(tmp_path / "folder")


def test_status_and_stop_do_not_open_a_pipe(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "broker")
    folder.root.mkdir()
    os.mkfifo(folder.state)
    os.mkfifo(folder.lock)
    assert not embedded.status(BrokerSettings(data_dir=folder.root)).running
    assert not embedded.stop(BrokerSettings(data_dir=folder.root))


def test_links_within_a_model_and_of_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    hub = tmp_path / "models--a--b"
    snapshot, blob = hub / "snapshots" / "1a", hub / "blobs" / "2b"
    snapshot.mkdir(parents=True)
    blob.parent.mkdir()
    blob.write_text("{}")
    (snapshot / "config.json").symlink_to(blob)
    assert within(snapshot / "config.json", snapshot) == blob.resolve()
    (snapshot / "tokenizer.json").symlink_to("/etc/passwd")
    (snapshot / "zero.json").symlink_to("/dev/zero")
    for name in ("tokenizer.json", "zero.json"):
        with pytest.raises(NotPlainError, match="leads out"):
            within(snapshot / name, snapshot)
