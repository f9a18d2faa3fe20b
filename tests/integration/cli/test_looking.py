"""Commands that only look leave no topic behind, wherever they look."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.topics import TASKS, TOPICS
from tests.support.mesh.mesh import make_topics, unused
from trinity_bus.bus.client.connection import administrator
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import UnknownTopicError
from workers.cli import app as cli

pytestmark = pytest.mark.integration

LOOKING = (
    "status --once",
    "batches",
    "batches --json",
    "runners --once",
    "versions",
    "dead-letters",
    "topics list",
    "positions show",
    "track --once --out {folder}",
    # What acts on a mesh looks for it first.
    "abort 1 --reason why",
    "batches skip 1 --reason why",
    "positions resolve --tasks end",
    "versions publish 1",
    "versions rollback --to 1 --reason why --discard",
    "upgrade finalize",
)


@pytest.fixture
def mistyped(kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> KafkaSettings:
    mine = unused(kafka)
    monkeypatch.setenv("TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS", str(mine.bootstrap_servers))
    monkeypatch.setenv("TRINITY_BUS_MESH__NAMESPACE", mine.namespace)
    monkeypatch.setenv("TRINITY_BUS_CONSOLE__FOLDER", str(tmp_path / "console"))
    return mine


@pytest.fixture(scope="module")
def there(kafka: KafkaSettings) -> KafkaSettings:
    mine = unused(kafka)
    asyncio.run(make_topics(mine, [TASKS]))
    return mine


async def topics_of(settings: KafkaSettings) -> list[str]:
    async with administrator(settings, "test") as admin:
        return [name for name in await admin.list_topics() if name.startswith(f"{settings.namespace}.")]


@pytest.mark.parametrize("command", LOOKING)
def test_a_mistyped_namespace_is_told_and_gets_no_topics(
    command: str, mistyped: KafkaSettings, there: KafkaSettings, tmp_path: Path
) -> None:
    words = command.format(folder=tmp_path / "out").split()
    done = CliRunner().invoke(cli.app, words)
    assert isinstance(done.exception, UnknownTopicError), (done.output, done.exception)
    said = str(done.exception)
    assert said.startswith(f"namespace {mistyped.namespace!r} has no topics (TRINITY_BUS_MESH__NAMESPACE): there are ")
    assert there.namespace in said or " more" in said
    assert len(said.splitlines()) == 1
    assert asyncio.run(topics_of(mistyped)) == []


def test_a_mesh_that_has_some_of_its_topics_is_shown(there: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS", str(there.bootstrap_servers))
    monkeypatch.setenv("TRINITY_BUS_MESH__NAMESPACE", there.namespace)
    shown = CliRunner().invoke(cli.app, ["status", "--once"])
    assert shown.exit_code == 0, shown.exception
    assert "batches: none" in shown.stdout
    listed = CliRunner().invoke(cli.app, ["topics", "list"])
    assert listed.stdout.count("absent") == len(TOPICS) - 1
    assert asyncio.run(topics_of(there)) == [f"{there.namespace}.tasks"]
