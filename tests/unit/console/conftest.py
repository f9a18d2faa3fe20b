"""The index of what a module's fixture ``log`` has added."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.console.indexed import texts
from tests.support.fakes.log_records import LogRecords
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.store import Store


@pytest.fixture
def store(log: LogRecords, tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path, texts=texts) as made:
        made.take(*log.take())
        yield made


@pytest.fixture
def index(store: Store) -> Iterator[Index]:
    with Index(store.folder) as made:
        yield made
