"""The console's index beside a real log: what it waits for, what it makes anew, and killed at any instant."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from schemas import Task
from schemas.topic import Topic
from schemas.topics import BATCHES, EXPERIENCES, TASKS
from tests.support.fakes.log_records import group
from tests.support.mesh.mesh import unused
from tests.support.mesh.waiting import beside, until
from trinity_bus.bus import Bus
from trinity_bus.bus.client.connection import administrator
from trinity_bus.config import ConsoleSettings, KafkaSettings, Settings
from trinity_bus.console.index.follower import IndexStanding, PastRecords, follow_log
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.store import Store
from trinity_bus.console.index.terms import SampleFilter
from trinity_bus.errors import RecordGoneError, UnknownTopicError
from workers.console.mesh_watcher import MeshWatcher

pytestmark = pytest.mark.integration

KILLED = """
import sys, itertools
from pathlib import Path
from tests.support.fakes.log_records import LogRecords, group
from trinity_bus.console.index.store import Store
log = LogRecords()
with Store(Path(sys.argv[1]), texts=lambda lists: [str(each) for each in lists]) as store:
    done = store.positions.get(("experiences", 0), 0)
    for number in itertools.count():
        log.add(group(f"t-{number}", [0.5, 1.0]), 1_700_000_000 + number // 3)
        if number >= done and number % 7 == 0 or number + 1 == done:
            records, positions = log.take()
            if number >= done:
                store.take(records, positions, hold=number % 3 > 0)
"""


def committed(folder: Path) -> int:
    try:
        with sqlite3.connect(f"{(folder / 'index.sqlite').as_uri()}?mode=ro", uri=True) as db:
            return int((db.execute("SELECT next FROM offsets WHERE topic = 'experiences'").fetchone() or [0])[0])
    except sqlite3.OperationalError:
        return 0


def test_killed_amid_its_writes_it_has_nothing_twice_and_misses_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        before = committed(tmp_path)
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
        deadline = time.monotonic() + 60
        while committed(tmp_path) < before + 100 and time.monotonic() < deadline:
            time.sleep(0.003)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with Store(tmp_path, texts="none") as store, Index(tmp_path) as index:
        end = store.positions["experiences", 0]
        assert end >= 200
        db = store._db
        assert db.execute('SELECT count(*), count(DISTINCT "offset"), max("offset") FROM groups').fetchone() == (
            end,
            end,
            end - 1,
        )
        assert db.execute("SELECT count(*) FROM samples").fetchone() == (2 * end,)
        assert db.execute("SELECT count(*) FROM words WHERE words MATCH '\"1 2 3\"'").fetchone() == (end,)
        assert index.extent().samples == 2 * end


@pytest.fixture
def settings(kafka: KafkaSettings) -> KafkaSettings:
    """A namespace without topics."""
    return unused(kafka)


async def make_anew(settings: KafkaSettings, bus: Bus, topic: Topic) -> None:
    await delete(settings, topic)
    await bus.ensure_topics()


async def delete(settings: KafkaSettings, topic: Topic) -> None:
    async with administrator(settings, "test") as admin:
        await admin.delete_topics([topic.full_name(settings.namespace)])
        async with asyncio.timeout(150):
            while topic.full_name(settings.namespace) in await admin.list_topics():  # noqa: ASYNC110 - the broker deletes
                await asyncio.sleep(0.1)


async def test_a_broker_that_is_away_is_a_line(settings: KafkaSettings, tmp_path: Path) -> None:
    away = settings.model_copy(update={"bootstrap_servers": "127.0.0.1:1", "request_timeout_s": 1.0})
    with Store(tmp_path, texts="none") as store:
        async with aclosing(follow_log(Bus(away, client_id="index"), store)) as standings:
            told = [await anext(standings) for _ in range(2)]
    assert [one.state for one in told] == ["connecting", "waiting"]
    assert "127.0.0.1:1" in told[1].line


async def test_of_a_namespace_that_is_mistyped_nothing_is_made(settings: KafkaSettings, tmp_path: Path) -> None:
    own = ConsoleSettings(folder=tmp_path)
    feed = MeshWatcher(Settings(kafka=settings, console=own))
    async with beside(feed.run()) as following, Bus(settings, client_id="test") as bus:
        await until(lambda: "There is no such run" in feed.trouble or following.done(), 60)
        assert repr(settings.namespace) in feed.trouble
        assert "has no topics" in feed.trouble
        with pytest.raises(UnknownTopicError):
            await bus.end_offsets(BATCHES)
        await bus.ensure_topics()
        await until(lambda: not feed.trouble or following.done(), 60)
        assert not following.done()
        # A run whose topics are deleted is not a broker that is away, and the next one of its name is another.
        former = feed.state
        await delete(settings, TASKS)
        await until(lambda: "There is no such run" in feed.trouble or following.done(), 60)
        await bus.ensure_topics()
        await until(lambda: not feed.trouble or following.done(), 60)
        assert not following.done()
        assert feed.state is not former


async def test_it_follows_a_log_from_before_its_topics_to_those_made_anew(
    settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinity_bus.console.index.follower.LOOK_S", 0.5)
    async with Bus(settings, client_id="test") as bus, bus.producer() as producer:
        with Store(tmp_path, texts="none") as store, Index(tmp_path) as index:
            told = IndexStanding("connecting", "")

            async def follow() -> None:
                nonlocal told
                async for one in follow_log(Bus(settings, client_id="index"), store):
                    told = one

            async with beside(follow()):
                await until(lambda: told.state == "waiting")
                assert settings.namespace in told.line
                await bus.ensure_topics()
                await producer.send(EXPERIENCES, "t-0", group("t-0", [0.0, 1.0]))
                await until(lambda: index.extent().samples == 2)
                await until(lambda: told.state == "following")
                # What cannot be read is counted.
                await producer.send_raw(EXPERIENCES, b"t-1", b"nonsense")
                await producer.send(EXPERIENCES, "t-1", group("t-1", [0.5]))
                await until(lambda: index.extent().samples == 3)
                await until(lambda: index.passed_over().unreadable == {"experiences": 1})
                # Retention takes the tokens, and the row stays.
                place = index.samples(SampleFilter(task_id="t-1")).rows[0].place
                parts = index.groups(SampleFilter(task_id="t-1")).rows
                past = PastRecords(bus)
                assert (await past.group(parts)).rewards.tolist() == [0.5]
                await bus.delete_before({("experiences", place.partition): place.offset + 1})
                with pytest.raises(RecordGoneError):
                    await past.group(parts)
                assert index.sample(place) is not None
                await make_anew(settings, bus, EXPERIENCES)
                await producer.send(TASKS, "t-2", Task(task_id="t-2", workflow="copy", prompt="a"))
                await until(lambda: index.extent().samples == 0 and index.task("t-2") is not None)
