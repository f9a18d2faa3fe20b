"""TLS and SASL against a real broker that asks for them."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from schemas.task import Task
from schemas.topics import TASKS
from tests.support.mesh.mesh import with_topics
from tests.support.mesh.records import record_of
from tests.support.mesh.secure_broker import secure_broker
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus
from trinity_bus.bus.administration.requests import set_passwords
from trinity_bus.bus.client import credentials
from trinity_bus.bus.client.connection import administrator
from trinity_bus.bus.client.internals import LogClient, ask
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError, ConfigError, CredentialsRefusedError, SendError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]
PASSWORD = "right-horse"  # noqa: S105 - of a broker that lives as long as this test
DOUBT = "does it want another TRINITY_BUS_KAFKA__SECURITY_PROTOCOL?"
LOGIN = "TRINITY_BUS_KAFKA__SASL_PASSWORD and TRINITY_BUS_KAFKA__SASL_MECHANISM right?"
AUTHORITY = "TRINITY_BUS_KAFKA__SSL_CAFILE and TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS right?"
LIMIT_S = 60.0
CERTIFICATE = "a certificate, or another one than that of TRINITY_BUS_KAFKA__SSL_CERTFILE?"
LISTENERS = {"SSL": "TLS", "SASL_PLAINTEXT": "LOGIN", "SASL_SSL": "BOTH"}


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself (``server.pem``, ``server.key``), and one for a client."""
    folder = tmp_path_factory.mktemp("certificates")
    for name, encrypted in (("server", False), ("client", True)):
        secret = ["-passout", f"pass:{PASSWORD}"] if encrypted else ["-nodes"]
        openssl(
            folder,
            *("req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-subj", f"/CN={name}", *secret),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.pem"),
        )
    both = (folder / "server.key").read_bytes() + (folder / "server.pem").read_bytes()
    (folder / "keystore.pem").write_bytes(both)
    return folder


@pytest.fixture(scope="module")
def brokers(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Security protocol to the address of a listener that wants it. The one for ``SSL`` wants a client certificate."""
    module = "org.apache.kafka.common.security"
    properties: dict[str, object] = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates / "keystore.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates / "client.pem",
        "listener.name.tls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    }
    for listener in ("login", "both"):
        properties[f"listener.name.{listener}.plain.sasl.jaas.config"] = (
            f'{module}.plain.PlainLoginModule required user_alice="{PASSWORD}";'
        )
        for scram in ("scram-sha-256", "scram-sha-512"):
            properties[f"listener.name.{listener}.{scram}.sasl.jaas.config"] = (
                f"{module}.scram.ScramLoginModule required;"
            )
    users = [f"{mechanism}=[name=alice,password={PASSWORD}]" for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")]
    options = [word for user in users for word in ("--add-scram", user)]
    listeners = {name: protocol for protocol, name in LISTENERS.items()}
    with secure_broker(tmp_path_factory.mktemp("broker"), listeners, properties, options) as addresses:
        yield {protocol: addresses[name] for protocol, name in LISTENERS.items()}


def settings_for(brokers: dict[str, str], certificates: Path, protocol: str, **more: Any) -> KafkaSettings:
    values: dict[str, Any] = {
        "bootstrap_servers": brokers[protocol],
        "security_protocol": protocol,
        "sasl_username": "alice",
        "sasl_password": SecretStr(PASSWORD),
        "ssl_cafile": certificates / "server.pem",
        "ssl_certfile": certificates / "client.pem",
        "ssl_keyfile": certificates / "client.key",
        "ssl_password": SecretStr(PASSWORD),
        "request_timeout_s": 10.0,
    }
    return KafkaSettings(**(values | more))


async def there_and_back(settings: KafkaSettings) -> None:
    async with with_topics(settings, [TASKS]) as bus:
        async with bus.producer() as producer, bus.producer(transactional_id="t") as transactional:
            position = await (await producer.send(TASKS, "t", Task(task_id="t", workflow="math", prompt="x")))
            async with transactional.transaction():
                await transactional.send_raw(TASKS, "t", b"{}")
        (found,) = await bus.fetch(TASKS, [position])
        assert record_of(found).task_id == "t"


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SSL", "PLAIN"),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-512"),
    ],
)
async def test_each_way_to_connect_works(
    brokers: dict[str, str], certificates: Path, protocol: str, mechanism: str
) -> None:
    settings = settings_for(brokers, certificates, protocol, sasl_mechanism=mechanism)
    await there_and_back(settings.model_copy(update={"namespace": f"{protocol}-{mechanism}"}))


@pytest.mark.parametrize(
    ("protocol", "wrong", "answer"),
    [
        pytest.param("SASL_PLAINTEXT", {"security_protocol": "SASL_SSL"}, DOUBT, id="TLS and a login where it is not"),
        pytest.param("SSL", {"ssl_certfile": None, "ssl_keyfile": None}, CERTIFICATE, id="no certificate"),
        pytest.param("SASL_PLAINTEXT", {"security_protocol": "SSL"}, DOUBT, id="TLS where there is none"),
        pytest.param("SASL_SSL", {"security_protocol": "PLAINTEXT"}, DOUBT, id="no TLS where there is"),
    ],
)
async def test_a_refusal_says_why_and_shows_no_secret(
    brokers: dict[str, str], certificates: Path, protocol: str, wrong: dict[str, Any], answer: str
) -> None:
    settings = settings_for(brokers, certificates, protocol, **wrong)
    with pytest.raises(BrokerUnreachableError) as caught:
        await Bus(settings, client_id="test").start()
    assert answer in str(caught.value)
    assert brokers[protocol] in str(caught.value)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "answer", "doubt"),
    [
        pytest.param({"sasl_password": SecretStr("wrong")}, "uthentication failed", LOGIN, id="password"),
        pytest.param({"sasl_mechanism": "PLAIN", "sasl_username": "eve"}, "uthentication failed", LOGIN, id="user"),
        pytest.param({"ssl_cafile": None}, "CERTIFICATE_VERIFY_FAILED", AUTHORITY, id="unknown authority"),
    ],
)
@pytest.mark.usefixtures("hasty")
async def test_wrong_credentials_are_no_outage(
    brokers: dict[str, str], certificates: Path, wrong: dict[str, Any], answer: str, doubt: str
) -> None:
    settings = settings_for(brokers, certificates, "SASL_SSL", outage_s=LIMIT_S, **wrong)
    async with asyncio.timeout(LIMIT_S / 2):
        with pytest.raises(CredentialsRefusedError, match=answer) as caught:
            await Bus(settings, client_id="test", patient=True).start()
    assert str(caught.value).endswith(doubt)
    assert brokers["SASL_SSL"] in str(caught.value)
    assert PASSWORD not in str(caught.value)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials are given up soon."""
    monkeypatch.setattr(credentials, "REFUSED_S", 0.5)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[LogClient]:
    """The client library's that a test has connected."""
    found: list[LogClient] = []
    real = LogClient.bootstrap

    async def bootstrap(client: LogClient) -> None:
        found.append(client)
        await real(client)

    monkeypatch.setattr(LogClient, "bootstrap", bootstrap)
    return found


async def give_password(settings: KafkaSettings, user: str, password: str) -> None:
    async with administrator(settings, "test") as admin:
        (result,) = (await ask(admin, set_passwords({user: password}))).results
        assert result[1] == 0


async def test_a_user_who_is_made_while_a_service_starts_is_let_in(
    brokers: dict[str, str], certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    as_admin = settings_for(brokers, certificates, "SASL_SSL")
    late = as_admin.model_copy(update={"sasl_username": "late"})
    starting = asyncio.create_task(Bus(late, client_id="test", patient=True).start())
    await until(lambda: "lets this process in" in caplog.text)
    await give_password(as_admin, "late", PASSWORD)
    await starting


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("kind", ["producer", "transactions", "reader", "positions", "new"])
async def test_a_password_that_is_changed_ends_each_kind_of_client(
    brokers: dict[str, str], certificates: Path, kind: str, clients: list[LogClient]
) -> None:
    as_admin = settings_for(brokers, certificates, "SASL_SSL", namespace=f"changed-{kind}", request_timeout_s=1.0)
    user = f"changes-{kind}"
    await give_password(as_admin, user, PASSWORD)
    settings = as_admin.model_copy(update={"sasl_username": user, "outage_s": LIMIT_S})
    task = Task(task_id="t", workflow="math", prompt="x")
    async with (
        asyncio.timeout(LIMIT_S / 2),
        # The broker knows the user a moment after it is said.
        Bus(settings, client_id="test", patient=True) as bus,
        AsyncExitStack() as all_,
    ):
        await bus.ensure_topics([TASKS])
        producer = await all_.enter_async_context(bus.producer())
        transactional = await all_.enter_async_context(bus.producer(transactional_id="t"))
        reader = await all_.enter_async_context(bus.reader(TASKS))
        position = await (await producer.send(TASKS, "t", task))
        await bus.fetch(TASKS, [position])
        async with transactional.transaction():
            await transactional.send_raw(TASKS, "t", b"{}")

        async def goes_on() -> None:
            """What each kind of client does again and again."""
            match kind:
                case "producer":
                    await (await producer.send(TASKS, "t", task))
                case "transactions":
                    async with transactional.transaction():
                        await transactional.send_raw(TASKS, "t", b"{}")
                case "reader":
                    await reader.is_at_end()
                case "positions":
                    await bus.fetch(TASKS, [position])
                case _:
                    async with administrator(settings, "test"):
                        pass

        await give_password(as_admin, user, "another")
        # The broker takes the one as soon as it refuses the other: a moment after that is said.
        async with Bus(
            settings.model_copy(update={"sasl_password": SecretStr("another")}), client_id="test", patient=True
        ):
            pass
        for client in clients:
            client.break_off()
        # Of a record it is said, besides, that it is not known to be durable.
        kinds = SendError if kind in ("producer", "transactions") else CredentialsRefusedError
        with pytest.raises(kinds, match=r"TRINITY_BUS_KAFKA__SASL_PASSWORD"):
            await goes_on()


async def test_a_key_that_cannot_be_opened_is_a_wrong_setting(brokers: dict[str, str], certificates: Path) -> None:
    for password in (SecretStr("wrong"), None):
        settings = settings_for(brokers, certificates, "SSL", ssl_password=password)
        with pytest.raises(ConfigError, match="TRINITY_BUS_KAFKA__SSL_PASSWORD"):
            await Bus(settings, client_id="test").start()
