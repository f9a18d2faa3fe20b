import asyncio
import contextlib
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.support.console.site import settings_of
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus
from trinity_bus.console.index.files import explained, store_folder
from trinity_bus.console.index.store import Store
from workers.console.mesh_watcher import IndexSide
from workers.console.service import Console

NO_TEXTS = "no tokenizer"


async def test_what_is_being_opened_when_it_ends_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class SlowStore(Store):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            begun.set()
            assert go_on.wait(60)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr("workers.console.mesh_watcher.Store", SlowStore)
    settings = settings_of(tmp_path)
    side = IndexSide(settings, lambda: Bus(settings.kafka, client_id="test"))
    running = asyncio.create_task(side.run(lambda: None))
    await asyncio.to_thread(begun.wait, 60)
    running.cancel()
    go_on.set()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    Store(store_folder(settings), texts=NO_TEXTS).close()


async def test_a_full_disk_is_a_line_on_every_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullStore(Store):
        def __init__(self, folder: Path, **_: object) -> None:
            with explained(folder), closing(sqlite3.connect(":memory:")) as db:
                db.execute("PRAGMA max_page_count = 1")
                db.execute("CREATE TABLE one (x)")
                db.execute("CREATE TABLE two (x)")

    monkeypatch.setattr("workers.console.mesh_watcher.Store", FullStore)
    there = Console(settings_of(tmp_path))
    keeping = asyncio.create_task(there.feed.index.run(lambda: None))
    try:
        async with TestClient(TestServer(there.app())) as client:
            await until(lambda: "cannot be kept" in there.feed.trouble or keeping.done(), 60)
            for path in ("/", "/steps"):
                async with client.get(path) as answer:
                    assert "the disk is full: make room, and it goes on by itself" in await answer.text(), path
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
