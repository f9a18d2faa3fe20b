"""An index of records that were added to a log."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.fakes.log_records import LogRecords
from trinity_bus.console.index.group_rows import Tokens
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.store import Store

WORDS = {1: "copy", 2: "three", 3: "digits", 4: "the", 5: "answer", 6: "is", 7: "four"}


def texts(tokens: Sequence[Tokens]) -> Sequence[str]:
    """Stands in for a tokenizer: a word for each token."""
    return [" ".join(WORDS.get(token, "?") for token in each) for each in tokens]


@contextmanager
def indexed(folder: Path, log: LogRecords, texts: Any = "none", **how: Any) -> Iterator[Index]:
    with Store(folder, texts=texts) as store:
        store.take(*log.take())
        with Index(folder, **how) as index:
            yield index
