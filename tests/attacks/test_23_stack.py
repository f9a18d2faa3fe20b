"""The stack tells an operator of what ends runs, keeps its parts apart, and fills neither disk nor process table.

Before: alerts were on a page that somebody had to open; nothing looked at disks, certificates, copies or limits; all
containers shared one network, wrote logs without end, and could start processes without end; a tag could be moved to
another image; a client on another machine needed two settings, one of which opened every port of the stack.
"""

import asyncio
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.mesh.compose_files import DEFAULTS, FILES, FOLDER, ROOT, filled, parsed, services
from tests.support.mesh.prometheus_names import alert_rules
from tests.support.mesh.waiting import until
from tools import pin_images
from trinity_bus.bus.administration import cluster_gauges
from trinity_bus.bus.administration.cluster import (
    ClusterState,
    Disk,
    expiry,
    file_expiries,
    partition_sizes,
    shown_expiry,
    under_replicated,
)
from trinity_bus.errors import BusError

sys.path.insert(0, str(FOLDER))
import alert_log

SERVICES = pytest.mark.parametrize(
    ("name", "service"), [pytest.param(name, service, id=f"{file}:{name}") for file, name, service in services()]
)
MESH = {"kafka", "topics", "coordinator", "explorer", "trainer", "taskset", "gateway", "console", "access"}


# ------------------------------------------------------------------------------------------------------ compose files


@SERVICES
def test_no_container_fills_the_disk_with_log_lines_or_the_machine_with_processes(
    name: str, service: dict[str, Any]
) -> None:
    assert service["logging"]["driver"] == "local", "the driver that turns files over"
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert 0 < service["pids_limit"] <= 4096, f"{name} may start processes without end"


@SERVICES
def test_each_service_is_in_the_networks_that_it_needs_and_no_others(name: str, service: dict[str, Any]) -> None:
    wanted = {
        "explorer": {"mesh", "weights"},
        "trainer": {"mesh", "weights"},
        "otel-collector": {"mesh", "observability"},
    }.get(name, {"mesh"} if name in MESH or name == "model" else {"observability"})
    assert set(service["networks"]) == wanted


def test_weights_have_a_network_without_a_way_out_and_the_trainer_listens_there_alone() -> None:
    stack = parsed(FOLDER / "compose.yaml")
    assert stack["networks"]["weights"]["internal"] is True
    trainer = stack["services"]["trainer"]
    assert trainer["environment"]["TRINITY_BUS_TRAINER__HOST"] in trainer["networks"]["weights"]["aliases"]
    assert not trainer["networks"]["mesh"]


@pytest.mark.parametrize("file", ["compose.yaml", "compose.secure.yaml"])
def test_one_setting_lets_clients_of_other_machines_reach_the_log_and_opens_nothing_else(file: str) -> None:
    here = "192.0.2.7"
    ports = [
        filled(port, KAFKA_HOST=here)
        for path in FILES
        for service in parsed(path).get("services", {}).values()
        for port in service.get("ports", [])
    ]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == [f"{here}:{DEFAULTS['KAFKA_PORT']}:9092"]
    kafka = parsed(FOLDER / file)["services"]["kafka"]["environment"]
    told = filled(kafka["KAFKA_ADVERTISED_LISTENERS"], KAFKA_HOST=here)
    assert f"HOST://{here}:{DEFAULTS['KAFKA_PORT']}" in told.split(",")


def test_certificates_hold_for_the_address_that_clients_are_sent_to(tmp_path: Path) -> None:
    made = {**os.environ, "SECRETS_DIR": str(tmp_path), "KAFKA_HOST": "192.0.2.7"}
    subprocess.run([FOLDER / "secure.sh"], env=made, check=True, capture_output=True)
    certificate = next(
        line.split("=", 1)[1].strip("'")
        for line in (tmp_path / "compose.env").read_text().splitlines()
        if line.startswith("KAFKA_CERTIFICATE=")
    ).replace("\\n", "\n")
    (tmp_path / "kafka.pem").write_text(certificate)
    shown = subprocess.run(
        ["openssl", "x509", "-in", tmp_path / "kafka.pem", "-noout", "-ext", "subjectAltName"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "IP Address:192.0.2.7" in shown
    assert "BOOTSTRAP_SERVERS=192.0.2.7:9092\n" in (tmp_path / "producer.env").read_text()


# ------------------------------------------------------------------------------------------------------------- alerts


def test_what_ends_runs_has_an_alert() -> None:
    wanted = {"DiskFills", "CertificateEnds", "UnderReplicated", "BacklogNearBudget", "RecordsLost"}
    assert wanted <= {rule["alert"] for rule in alert_rules()}


def test_alerts_go_to_alertmanager_and_from_there_to_a_receiver_that_is_in_the_stack() -> None:
    stack = parsed(FOLDER / "compose.observability.yaml")["services"]
    prometheus = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    (targets,) = prometheus["alerting"]["alertmanagers"][0]["static_configs"]
    assert targets["targets"] == ["alertmanager:9093"]
    config = yaml.safe_load((FOLDER / Path(DEFAULTS["ALERTMANAGER_CONFIG"]).name).read_text())
    (receiver,) = config["receivers"]
    assert receiver["name"] == config["route"]["receiver"]
    assert receiver["webhook_configs"][0]["url"] == f"http://alert-log:{alert_log.PORT}/"
    assert "alert-log" in stack
    known = {rule["alert"] for rule in alert_rules()}
    for rule in config["inhibit_rules"]:
        for matcher in [*rule["source_matchers"], *rule["target_matchers"]]:
            assert set(matcher.partition("=")[2].strip('~ "').split("|")) <= known


@pytest.fixture
def receiver() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), alert_log.Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def post(port: int, body: bytes, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/", body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_receiver_says_each_alert_in_one_line_whatever_is_in_it(
    receiver: int, capsys: pytest.CaptureFixture[str]
) -> None:
    alert = {
        "status": "firing",
        "labels": {"alertname": "NoTrainer", "severity": "critical"},
        "annotations": {"summary": "Gone\nfiring critical Forged: \x1b[31m", "runbook": "docs/operations.md#notrainer"},
        "startsAt": "2026-01-31T12:00:00.123Z",
        "endsAt": "0001-01-01T00:00:00Z",
    }
    assert post(receiver, json.dumps({"alerts": [alert]}).encode()) == 204
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(r"2026-01-31T12:00:00Z firing critical NoTrainer: Gone\nfiring critical Forged: \x1b[31m")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"alerts": [{}]}', b'{"alerts": 3}', b"\xff", b"[" * 100_000])
def test_the_receiver_refuses_what_it_cannot_read(receiver: int, body: bytes) -> None:
    assert post(receiver, body) == 400


def test_the_receiver_refuses_what_is_too_large_before_it_reads_it(receiver: int) -> None:
    assert post(receiver, b"", **{"Content-Length": str(1 << 40)}) == 400


# ------------------------------------------------------------------------------------------------------------ digests


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``docker`` that knows a digest for every image; a folder with an ``.env`` beside."""
    program = tmp_path / "docker"
    program.write_text('#!/bin/sh\nprintf \'{"digest": "sha256:%064d"}\' "${DIGEST:-1}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / ".env").write_text((FOLDER / ".env").read_text())
    return tmp_path


def pin(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "pin_images.py", "--folder", folder, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_each_image_gets_its_digest_beside_its_tag_and_a_tag_that_moves_is_found(registry: Path) -> None:
    assert pin(registry, "--check").returncode == 1
    made = pin(registry)
    assert made.returncode == 0, made.stderr
    lines = dict(line.split("=", 1) for line in (registry / "images.env").read_text().splitlines()[1:])
    pulled = {name: image for name, image in DEFAULTS.items() if name.endswith("_IMAGE")}
    assert lines == {name: f"{image}@sha256:{1:064d}" for name, image in pulled.items()}
    assert pin(registry, "--check").returncode == 0

    moved = pin(registry, "--check", DIGEST="2")
    assert moved.returncode == 1
    assert f"KAFKA_IMAGE was {DEFAULTS['KAFKA_IMAGE']}@sha256:{1:064d}, and is" in moved.stderr
    (registry / ".env").write_text((FOLDER / ".env").read_text().replace("kafka:4.", "kafka:5."))
    assert "KAFKA_IMAGE is apache/kafka:5." in pin(registry, "--check").stderr


def test_without_a_registry_nothing_is_written_and_the_reason_is_said(registry: Path) -> None:
    (registry / "docker").write_text("#!/bin/sh\necho 'no such host' >&2; exit 1\n")
    made = pin(registry)
    assert made.returncode == 1
    assert "no such host" in made.stderr
    assert not (registry / "images.env").exists()


def test_pinned_images_are_those_of_the_stack() -> None:
    """Where they have been pinned: that takes the images' registries."""
    path = FOLDER / "images.env"
    if path.exists():
        tagged, pinned = (pin_images.variables(file.read_text()) for file in (FOLDER / ".env", path))
        assert pin_images.mismatches(tagged, pinned) == []


# ------------------------------------------------------------------------------------------------ what brokers tell


def test_a_partition_without_all_of_its_copies_is_counted_and_others_topics_are_not() -> None:
    def partition(*isr: int) -> dict[str, Any]:
        return {"replicas": [1, 2, 3], "isr": isr}

    described = [
        {"topic": "ns.tasks", "error_code": 0, "partitions": [partition(1, 2, 3), partition(1, 3), partition()]},
        {"topic": "ns.batches", "error_code": 29, "partitions": []},
        {"topic": "other.tasks", "error_code": 0, "partitions": [partition(1)]},
    ]
    assert under_replicated(described, {"ns.tasks": "tasks", "ns.batches": "batches"}) == {"tasks": 2}


def test_a_partition_is_as_large_as_its_largest_copy() -> None:
    def answer(*partitions: tuple[int, int, bool]) -> Any:
        rows: list[Any] = [(number, size, 0, is_future, {}) for number, size, is_future in partitions]
        return SimpleNamespace(results=[(0, "/data", [("t", rows, {})], 100, 50, {}), (56, "/broken", [], -1, -1, {})])

    sizes = partition_sizes([answer((0, 10, False), (1, 90, False)), answer((0, 12, False), (1, 500, True))])
    assert sizes == {("t", 0): 12, ("t", 1): 90}


def read_gauges() -> dict[str, dict[str, float]]:
    """Name to the value of each attribute's value, as whoever collects metrics is told them."""
    return {
        name: {str(next(v for k, v in o.attributes.items() if k != "messaging.system")): o.value for o in read()}  # type: ignore[union-attr]
        for name, _, _, read in cluster_gauges._GAUGES
    }


async def test_gauges_tell_what_was_seen_and_nothing_of_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    disks = {"broker 1 /data": Disk(100, 9)}
    seen = ClusterState({"tasks": 2}, {"tasks": 7}, disks, {"broker k:1": 3.0})

    class Fake:
        """A bus and its observer."""

        answer: ClusterState | None = seen

        async def cluster_observer(self) -> Any:
            return self

        async def look(self) -> ClusterState:
            if self.answer is None:
                raise BusError("away")
            return self.answer

    def certificates() -> dict[str, float]:
        return read_gauges()["trinity.certificate.expiry"]

    bus = Fake()
    async with cluster_gauges.cluster_gauges(bus, every_s=0.001):
        await until(lambda: certificates() == {"broker k:1": 3.0})
        told = read_gauges()
        assert told["trinity.topic.under_replicated"] == {"tasks": 2}
        assert told["trinity.topic.size"] == {"tasks": 7}
        assert told["trinity.disk.free"]["broker 1 /data"] == 9
        bus.answer = None
        await until(lambda: not certificates())
        bus.answer = seen
        await until(lambda: bool(certificates()))
    assert certificates() == {}
    cluster_gauges.watch_folder("checkpoints", tmp_path)
    cluster_gauges.watch_folder("absent", tmp_path / "absent")
    told = read_gauges()
    assert 0 < told["trinity.disk.free"]["checkpoints"] <= told["trinity.disk.size"]["checkpoints"]
    assert "absent" not in told["trinity.disk.size"]


# ------------------------------------------------------------------------------------------------------- certificates


CA = """
[ca]
default_ca=d
[d]
database=index.txt
new_certs_dir=.
serial=serial
default_md=sha256
policy=p
[p]
CN=supplied
"""


def make_certificate(folder: Path, begin: str, end: str) -> tuple[Path, Path]:
    """A key, and a certificate of its own that holds between two times."""
    for name, content in (("ca.conf", CA), ("index.txt", ""), ("serial", "01\n")):
        (folder / name).write_text(content)
    request = "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=k -keyout key.pem -out k.csr"
    sign = "ca -batch -config ca.conf -selfsign -keyfile key.pem -in k.csr -out k.pem"
    for command in (request, f"{sign} -startdate {begin} -enddate {end}"):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return folder / "key.pem", folder / "k.pem"


@pytest.mark.parametrize(
    ("end", "wanted"),
    [("491231235959Z", 2524607999.0), ("20500101000000Z", 2524608000.0), ("99991231235959Z", 253402300799.0)],
    ids=["UTCTime", "GeneralizedTime", "no end"],
)
def test_the_end_of_a_certificate_is_read_as_openssl_writes_it(tmp_path: Path, end: str, wanted: float) -> None:
    _, certificate = make_certificate(tmp_path, "20200101000000Z", end)
    assert file_expiries(certificate) == [wanted]


@given(st.binary(max_size=300))
def test_bytes_that_are_no_certificate_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="no certificate"):
        expiry(data)


def test_a_certificate_that_is_cut_or_changed_is_a_value_error_or_has_an_end(tmp_path: Path) -> None:
    _, certificate = make_certificate(tmp_path, "20200101000000Z", "20300101000000Z")
    (pem,) = re.findall(r"-----BEGIN.*", certificate.read_text(), re.DOTALL)
    der = ssl.PEM_cert_to_DER_cert(pem)
    refused = 0
    for at in range(len(der)):
        for mutant in (der[:at], der[:at] + bytes([der[at] ^ 0x81]) + der[at + 1 :]):
            try:
                assert isinstance(expiry(mutant), float)
            except ValueError as error:
                refused += str(error).startswith("no certificate")
    assert refused > len(der) // 2


@pytest.mark.parametrize("end", ["20400101000000Z", "20200102000000Z"], ids=["that holds", "that has ended"])
async def test_the_end_of_what_a_broker_shows_is_seen_also_when_it_is_over(tmp_path: Path, end: str) -> None:
    key, certificate = make_certificate(tmp_path, "20200101000000Z", end)
    (wanted,) = file_expiries(certificate)

    async def scenario() -> float:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)

        async def ignore(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(ignore, "127.0.0.1", 0, ssl=context)
        async with server:
            return await shown_expiry("127.0.0.1", server.sockets[0].getsockname()[1], 10)

    assert await scenario() == wanted
