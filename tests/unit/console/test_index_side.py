"""The index beside the console, ended at the worst instant."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from trinity_bus.bus import Bus
from trinity_bus.config import ConsoleSettings, KafkaSettings, Settings
from trinity_bus.console.index import Store, store_folder
from workers.console.index_side import IndexSide

NO_TEXTS = "no tokenizer"


async def test_what_is_being_opened_when_it_ends_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class SlowStore(Store):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            begun.set()
            assert go_on.wait(60)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr("workers.console.index_side.Store", SlowStore)
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        console=ConsoleSettings(folder=tmp_path),
    )
    side = IndexSide(settings, lambda: Bus(settings.kafka, client_id="test"))
    running = asyncio.create_task(side.run(lambda: None))
    await asyncio.to_thread(begun.wait, 60)
    running.cancel()
    go_on.set()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    Store(store_folder(settings), texts=NO_TEXTS).close()
