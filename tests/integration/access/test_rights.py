"""A whole mesh on a cluster that checks rights, each service as its own user; and what each is refused.

Certificates and passwords are those that ``deploy/docker-compose/secure.sh`` makes.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiokafka.protocol.admin import DescribeClientQuotasRequest
from pydantic import SecretStr

from schemas import BatchRecord, Task
from schemas.topic import Topic
from schemas.topics import BATCHES, COORDINATOR_EVENTS, EXPERIENCES, EXPLORER_EVENTS, MODEL_VERSIONS, TOPICS
from tests.support.mesh.forks import finished, forked
from tests.support.mesh.mesh import PROGRAM, make_topics
from tests.support.mesh.secure_broker import secure_broker
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus
from trinity_bus.bus.administration.access import ADMIN, ROLES, USERS, user_name
from trinity_bus.bus.administration.access_admin import apply_access
from trinity_bus.bus.administration.requests import READ, REQUESTS, WRITE
from trinity_bus.bus.client.connection import administrator
from trinity_bus.client import RolloutCoordinator
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.errors import AccessDeniedError, BrokerUnreachableError, BusError
from trinity_bus.runtime.process import Process, tail
from workers.doctor.checks import look_at_broker

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]
SCRIPT = Path(__file__).parents[3] / "deploy" / "docker-compose" / "secure.sh"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class Cluster:
    """A broker that checks certificates, passwords and rights."""

    def __init__(self, folder: Path, secrets: dict[str, str], addresses: dict[str, str]) -> None:
        self._folder = folder
        self._secrets = secrets
        self._addresses = addresses

    @property
    def passwords(self) -> dict[str, str]:
        return {user: self._secrets[f"{user.upper()}_PASSWORD"] for user in USERS}

    def root(self, namespace: str) -> KafkaSettings:
        """Who may do everything, known by a certificate."""
        for name in ("key", "certificate"):
            pem = self._secrets[f"ROOT_{name.upper()}"].replace("\\n", "\n")
            (self._folder / f"root.{name}").write_text(pem)
        return KafkaSettings(
            bootstrap_servers=self._addresses["BROKERS"],
            namespace=namespace,
            security_protocol="SSL",
            ssl_cafile=self._folder / "ca.pem",
            ssl_certfile=self._folder / "root.certificate",
            ssl_keyfile=self._folder / "root.key",
        )

    def user(self, namespace: str, user: str) -> KafkaSettings:
        """One of the mesh's users."""
        return KafkaSettings(
            bootstrap_servers=self._addresses["CLIENTS"],
            namespace=namespace,
            security_protocol="SASL_SSL",
            sasl_username=user_name(namespace, user),
            sasl_password=SecretStr(self.passwords[user]),
            ssl_cafile=self._folder / "ca.pem",
            request_timeout_s=10.0,
        )

    async def prepared(self, namespace: str) -> None:
        """Users, rights and topics of a namespace, as an operator makes them."""
        await apply_access(self.root(namespace), self.passwords)
        await make_topics(self.user(namespace, ADMIN))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("secrets")
    subprocess.run([SCRIPT], env={**os.environ, "SECRETS_DIR": str(folder)}, check=True, capture_output=True)
    assert oct((folder / "compose.env").stat().st_mode & 0o777) == "0o600"
    lines = [line for line in (folder / "compose.env").read_text().splitlines() if not line.startswith("#")]
    secrets = {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": secrets["KAFKA_KEY"],
        "ssl.keystore.certificate.chain": secrets["KAFKA_CERTIFICATE"],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": secrets["CA_CERTIFICATE"],
        "listener.name.brokers.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.clients.scram-sha-512.sasl.jaas.config": SCRAM,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The embedded broker talks to itself without a certificate.
        "super.users": "User:ANONYMOUS;User:root",
    }
    listeners = {"BROKERS": "SSL", "CLIENTS": "SASL_SSL"}
    with secure_broker(tmp_path_factory.mktemp("broker"), listeners, properties) as addresses:
        yield Cluster(folder, secrets, addresses)


@pytest.fixture
def namespace() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


async def may_write(bus: Bus, topic: Topic) -> bool:
    async with bus.producer() as producer:
        try:
            await (await producer.send_raw(topic, "k", b"v"))
        except BusError as error:
            if "AuthorizationFailed" not in str(error):
                raise
            return False
    return True


async def may_read(bus: Bus, topic: Topic) -> bool:
    async with bus.reader(topic, start="beginning", expect=()) as reader:
        try:
            # There is a record in each topic, so that an answer is either that or a refusal.
            while not await reader.batch(10):
                pass
        except AccessDeniedError:
            return False
    return True


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(cluster: Cluster) -> str:
    """A namespace with a record in each topic."""
    namespace = "filled"
    await cluster.prepared(namespace)
    async with Bus(cluster.user(namespace, ADMIN), client_id="admin") as bus, bus.producer() as producer:
        for topic in TOPICS:
            await producer.send_raw(topic, "k", b"v")
    return namespace


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_reads_and_writes_what_the_table_says_and_nothing_else(
    cluster: Cluster, filled: str, role: str
) -> None:
    namespace = filled

    async with Bus(cluster.user(namespace, role), client_id=role) as bus:
        # Every service checks all topics at its start.
        await bus.ensure_topics()
        for topic in TOPICS:
            assert await may_write(bus, topic) == (role in topic.writers), topic.name
            assert await may_read(bus, topic) == (role in topic.readers), topic.name
        allowed = {"coordinator": ["coordinator"], "taskset": ["taskset.one", "taskset.two"]}.get(role, [])
        for name in ("coordinator", "taskset.one", "taskset.two", "another"):
            if name in allowed:
                async with bus.producer(transactional_id=name):
                    pass
                continue
            with pytest.raises(BusError, match="Authorization"):
                await bus.producer(transactional_id=name).start()


async def test_the_doctor_tells_what_a_services_user_may_not_do(cluster: Cluster, filled: str) -> None:
    """And writes nothing to find it out."""
    explorer = Settings().model_copy(update={"kafka": cluster.user(filled, "explorer")})
    async with Bus(cluster.root(filled), client_id="test") as bus:
        before = [await bus.end_offsets(topic) for topic in TOPICS]
        assert (await look_at_broker(explorer, ["explorer"])).refused == []
        refused = (await look_at_broker(explorer, ["explorer", "coordinator"])).refused
        assert [await bus.end_offsets(topic) for topic in TOPICS] == before
    writes = {topic.full_name(filled) for topic in TOPICS if "coordinator" in topic.writers}
    mine = {topic.full_name(filled) for topic in TOPICS if "explorer" in topic.writers}
    told = {line.split()[4].rstrip(",") for line in refused if line.startswith("coordinator needs WRITE on ")}
    assert told == writes - mine
    assert told


async def test_a_user_of_one_mesh_sees_nothing_of_another(cluster: Cluster, namespace: str) -> None:
    # The longer name begins with the shorter one and a dot.
    await cluster.prepared(namespace)
    await cluster.prepared(f"{namespace}.b")
    other = cluster.user(namespace, "producer").model_copy(update={"namespace": f"{namespace}.b"})
    async with Bus(other, client_id="client") as bus:
        with pytest.raises(BusError, match="not there, or hidden from this user"):
            await bus.ensure_topics()


async def test_rights_follow_the_table_and_passwords_can_be_changed(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.prepared(namespace)
    again = await apply_access(cluster.root(namespace), {"producer": "another-password"})
    assert (again.passwords, again.given, again.taken) == (1, 0, 0)
    # Brokers know of it a moment after it is said.
    changed = cluster.user(namespace, "producer").model_copy(update={"sasl_password": SecretStr("another-password")})
    async with Bus(changed, client_id="client", patient=True):
        pass
    with pytest.raises(BrokerUnreachableError, match="uthentication"):
        await Bus(cluster.user(namespace, "producer"), client_id="client").start()
    monkeypatch.setattr("trinity_bus.bus.administration.access.TOPICS", TOPICS[1:])
    narrower = await apply_access(cluster.root(namespace), {})
    assert narrower.given == 0
    assert narrower.taken > len(ROLES)
    # Who may not alter the cluster gives no rights, to himself neither.
    with pytest.raises(BusError, match="rights of User:"):
        await apply_access(cluster.user(namespace, ADMIN), {})


async def quotas_of(settings: KafkaSettings, user: str) -> dict[str, float]:
    """Those that the cluster keeps for a user."""
    async with administrator(settings, "test") as admin:
        request = DescribeClientQuotasRequest([("user", 0, user_name(settings.namespace, user))], strict=True)
        response = await admin._send_request(request)
    assert not response.error_code, response.error_message
    return {name: value for _, values in response.entries for name, value in values}


async def until_quotas_are(settings: KafkaSettings, wanted: dict[str, float]) -> None:
    """Those of a producer: what a controller has accepted reaches the brokers a moment later."""
    async with asyncio.timeout(60):
        while await quotas_of(settings, "producer") != wanted:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


async def test_quotas_are_set_and_taken_away(cluster: Cluster, namespace: str) -> None:
    root = cluster.root(namespace)
    await apply_access(root, {}, {"producer": {WRITE: 1e6, READ: 2e6, REQUESTS: 50.0}})
    await until_quotas_are(root, {WRITE: 1e6, READ: 2e6, REQUESTS: 50.0})
    assert await quotas_of(root, "operator") == {}
    await apply_access(root, {}, {"producer": {WRITE: 3e6, READ: None, REQUESTS: None}})
    await until_quotas_are(root, {WRITE: 3e6})
    await apply_access(root, {}, {"producer": {WRITE: None, READ: None, REQUESTS: None}})
    await until_quotas_are(root, {})


class Services:
    """Processes of one mesh, each logged in as its own user."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.folder = folder
        self._cluster = cluster
        self._namespace = namespace

    def environment(self, user: str, **settings: object) -> dict[str, str]:
        kafka = self._cluster.user(self._namespace, user)
        password = kafka.sasl_password
        assert password is not None
        # What services share stands in a section of its own.
        others = {"namespace", "max_record_mib", "sasl_password"}
        own = {name: value for name, value in kafka if value is not None and name not in others}
        return {
            **os.environ,
            **{f"TRINITY_BUS_KAFKA__{name.upper()}": str(value) for name, value in own.items()},
            "TRINITY_BUS_MESH__NAMESPACE": kafka.namespace,
            "TRINITY_BUS_KAFKA__SASL_PASSWORD": password.get_secret_value(),
            **{f"TRINITY_BUS_{name.upper()}": str(value) for name, value in settings.items()},
        }

    @contextlib.contextmanager
    def run(self, user: str, *arguments: str, **settings: object) -> Iterator[Process]:
        env, log = self.environment(user, **settings), self.folder / f"{user}.log"
        with forked(*arguments, name=user, env=env, output=log) as process:
            yield process

    def said(self) -> str:
        return "\n".join(f"{path.name}:\n{tail(path, 30)}" for path in sorted(self.folder.glob("*.log")))

    async def command(self, user: str, *arguments: str) -> str:
        """What ``trinity-bus`` prints, run by a user."""
        done = await asyncio.to_thread(finished, PROGRAM, *arguments, env=self.environment(user))
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


async def as_a_trainer_reads(kafka: KafkaSettings) -> list[BatchRecord]:
    """All that the real trainer reads, by a trainer's rights: batches, what their manifests name, versions, events."""
    async with Bus(kafka, client_id="trainer") as bus:
        async with bus.reader(
            MODEL_VERSIONS, EXPLORER_EVENTS, COORDINATOR_EVENTS, BATCHES, start="beginning"
        ) as reader:
            records = [received.record async for received in reader.replay()]
        batches = [r for r in records if isinstance(r, BatchRecord) and r.state == "finalized" and r.manifest]
        for batch in batches:
            positions = [part.position for entry in batch.manifest for part in entry.parts if part.position]
            if batch.batch_type == "train":
                assert positions
            await bus.fetch(EXPERIENCES, positions)
    return batches


@pytest.mark.timeout(300)
async def test_a_whole_mesh_works_with_a_user_for_each_service(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    services = Services(cluster, namespace, tmp_path)
    dataset = tmp_path / "tasks.jsonl"
    dataset.write_text(
        "".join(json.dumps({"task_id": f"t{n}", "workflow": "sequence", "prompt": f"{n}", "answer": "red"}) + "\n"
                for n in range(8))
    )  # fmt: skip

    async def main() -> None:
        await cluster.prepared(namespace)
        client = Settings().model_copy(update={"kafka": cluster.user(namespace, "producer")})
        with (
            services.run(
                *("coordinator", "workers.cli.app", "run", "coordinator"),
                coordinator__batch_size=4,
                coordinator__group_size=2,
            ) as leader,
            services.run("explorer", "tests.support.fakes.explorer", "words"),
            services.run("trainer", "benchmarks._scheduling.consumer", str(tmp_path), "0", "1"),
            services.run(
                *("taskset", "workers.cli.app", "run", "taskset"), taskset__path=dataset, taskset__epochs=1
            ) as taskset,
        ):
            # A client has less patience than four programs need that start at once on a busy machine.
            await until(lambda: "ready" in tail(tmp_path / "coordinator.log") or leader.poll() is not None)
            assert leader.poll() is None
            async with RolloutCoordinator(client, name="test") as coordinator:
                tasks = [Task(task_id=f"own-{n}", workflow="sequence", prompt=f"{n}", answer="red") for n in range(3)]
                await coordinator.submit_batch(batch_id="mine", tasks=tasks, batch_type="train")
                result = await coordinator.finalize_train_batch("mine")
                assert result["finished_task_count"] == 3, services.said()
            await until(lambda: taskset.poll() is not None)
            assert taskset.poll() == 0, services.said()
            checkpoint = tmp_path / "checkpoint.json"
            await until(lambda: checkpoint.exists() and json.loads(checkpoint.read_text())["step"] == 3)
            found = await as_a_trainer_reads(cluster.user(namespace, "trainer"))
            assert len(found) == 3
            assert "finalized" in await services.command("operator", "status", "--once")
            assert "No dead letters" in await services.command("operator", "dead-letters")
            assert f"{len(TOPICS)} topics are there" in await services.command("admin", "topics", "create")

    try:
        await main()
    except BaseException:
        print(services.said())
        raise


@pytest.mark.parametrize("user", ["coordinator", "explorer"])
async def test_only_the_coordinator_sees_the_disks_of_brokers(cluster: Cluster, filled: str, user: str) -> None:
    """Ends of certificates everybody sees who can connect."""

    async with Bus(cluster.user(filled, user), client_id=user) as bus:
        seen = await (await bus.cluster_observer()).look()
    assert bool(seen.disks) == bool(seen.sizes) == (user == "coordinator")
    assert seen.under_replicated["tasks"] == 0
    brokers = [end for name, end in seen.certificates.items() if name.startswith("broker ")]
    authority = seen.certificates["ssl_cafile"]
    # As secure.sh makes them: 397 days, and ten years.
    assert all(396 < (end - time.time()) / 86400 <= 397 for end in brokers)
    assert len(brokers) == 1
    assert 3640 < (authority - time.time()) / 86400 <= 3650
