"""The console's index beside a real log: what it waits for, what it makes anew, and killed at any instant."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import parquet

from schemas import Task
from schemas.topics import EXPERIENCES, TASKS, TOPICS
from tests.support.fakes.log_records import group
from trinity_bus.bus import Bus
from trinity_bus.bus.internals import delete_topics
from trinity_bus.config import KafkaSettings
from trinity_bus.console.index import Index, IndexFollower, PastRecords, SampleFilter, Store, UnreadableError
from trinity_bus.errors import RecordGoneError

pytestmark = pytest.mark.integration

KILLED = """
import sys, itertools
from pathlib import Path
from tests.support.fakes.log_records import LogRecords, group
from trinity_bus.console.index import Store
log = LogRecords()
with Store(Path(sys.argv[1]), texts=lambda lists: [str(each) for each in lists]) as store:
    done = store.positions.get(("experiences", 0), 0)
    for number in itertools.count():
        log.add(group(f"t-{number}", [0.5, 1.0]), 1_700_000_000 + number // 3)
        if number >= done and number % 7 == 0 or number + 1 == done:
            records, positions = log.take()
            if number >= done:
                store.take(records, positions)
"""


async def until(holds: Callable[[], bool], limit_s: float = 60) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.05)


def committed(folder: Path) -> int:
    try:
        with sqlite3.connect(f"{(folder / 'index.sqlite').as_uri()}?mode=ro", uri=True) as db:
            return int((db.execute("SELECT next FROM offsets WHERE topic = 'experiences'").fetchone() or [0])[0])
    except sqlite3.OperationalError:
        return 0


def test_killed_amid_its_writes_it_has_nothing_twice_and_misses_nothing(tmp_path: Path) -> None:
    for _ in range(3):
        before = committed(tmp_path)
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
        deadline = time.monotonic() + 60
        while committed(tmp_path) < before + 100 and time.monotonic() < deadline:
            time.sleep(0.003)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with Store(tmp_path, texts="none") as store, Index(tmp_path) as index:
        end = store.positions["experiences", 0]
        assert end >= 300
        db = store._db
        assert db.execute("SELECT count(*), count(DISTINCT \"offset\"), max(\"offset\") FROM groups").fetchone() == (
            end,
            end,
            end - 1,
        )
        assert db.execute("SELECT count(*) FROM samples").fetchone() == (2 * end,)
        assert db.execute("SELECT count(*) FROM words WHERE words MATCH '\"1 2 3\"'").fetchone() == (end,)
        assert index.extent().samples == 2 * end


async def test_it_waits_for_a_broker_and_for_topics_and_then_follows(kafka: KafkaSettings, tmp_path: Path) -> None:
    settings = kafka.model_copy(update={"namespace": f"test-{uuid.uuid4().hex[:12]}"})
    away = settings.model_copy(update={"bootstrap_servers": "127.0.0.1:1", "request_timeout_s": 1.0})
    with Store(tmp_path, texts="none") as store, Index(tmp_path) as index:
        async with IndexFollower(Bus(away, client_id="index"), store, read_mib_s=64) as follower:
            await until(lambda: follower.standing().state == "waiting")
            assert "127.0.0.1:1" in follower.standing().line
        async with Bus(settings, client_id="test") as bus, IndexFollower(
            Bus(settings, client_id="index"), store, read_mib_s=64
        ) as follower, bus.producer() as producer:
            await until(lambda: follower.standing().state == "waiting")
            assert "trinity-bus topics create" in follower.standing().line
            await bus.ensure_topics()
            await producer.send(EXPERIENCES, "t-0", group("t-0", [0.0, 1.0]))
            await until(lambda: follower.standing().state == "following")
            await until(lambda: index.extent().samples == 2)
            # While it follows, by what it is told; what cannot be read is counted.
            sent = await producer.send(EXPERIENCES, "t-1", group("t-1", [0.5]))
            await producer.send_raw(EXPERIENCES, b"t-2", b"nonsense")
            await sent
            await until(lambda: follower.standing().unreadable == {"experiences": 1})
            row = index.samples(SampleFilter(task_id="t-1")).rows[0]
            past = PastRecords(bus)
            assert (await past.group(row.place.partition, row.place.offset)).rewards.tolist() == [0.5]
            # Retention takes the tokens, and the row stays.
            await bus.delete_before({("experiences", row.place.partition): row.place.offset + 1})
            with pytest.raises(RecordGoneError):
                await past.group(row.place.partition, row.place.offset)
            assert index.sample(row.place) is not None
            # Topics that are made anew are another log.
            await delete_topics(bus, [TASKS, EXPERIENCES])
            await bus.ensure_topics()
            task = Task(task_id="new", workflow="copy", prompt="a")
            await (await producer.send(TASKS, "new", task))
            await until(lambda: index.task("new") is not None and index.extent().samples == 0)
            with pytest.raises(UnreadableError):
                await past.task(0, 0) if index.task("new").events[0].place.partition else await past.group(0, 0)
