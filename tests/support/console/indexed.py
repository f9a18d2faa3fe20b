"""An index of records that were added to a log."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.fakes.log_records import LogRecords
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.store import Store


@contextmanager
def indexed(folder: Path, log: LogRecords, texts: Any = "none", **how: Any) -> Iterator[Index]:
    with Store(folder, texts=texts) as store:
        store.take(*log.take())
        with Index(folder, **how) as index:
            yield index
