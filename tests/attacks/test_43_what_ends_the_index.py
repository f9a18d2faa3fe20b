"""A record that can be read, and not be written to the console's index: the index would stop at it, for good."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.codec import decode
from schemas.errors import SchemaError
from tests.support.fakes.log_records import LogRecords, group
from tests.unit.schemas.make_golden import GOLDEN
from trinity_bus.console.index.follower import TOPICS as INDEXED
from trinity_bus.console.index.group_rows import load_texts
from trinity_bus.console.index.store import Store

NUMBERS = (2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63), 1e308, float("nan"), float("-inf"))
WORDS = ("\0", "\u202e", "", "x" * 3000)
KINDS = tuple(kind for topic in INDEXED for kind in topic.records if not topic.name.endswith("dead-letters"))


def changed(value: Any) -> Iterator[Any]:
    """Return a message again and again, each time with another value in one place."""
    match value:
        case dict():
            for name, inside in value.items():
                yield from ({**value, name: other} for other in changed(inside))
        case list():
            for place, inside in enumerate(value[:2]):
                yield from ([*value[:place], other, *value[place + 1 :]] for other in changed(inside))
        case str() | None:
            yield from WORDS
        case int() | float():
            yield from NUMBERS


def test_whatever_is_read_is_written(tmp_path: Path) -> None:
    log, taken = LogRecords(), 0
    with Store(tmp_path / "index", texts="none") as store:
        for path in GOLDEN.glob("*.msgpack"):
            whole = msgspec.msgpack.decode(path.read_bytes())
            for message in changed(whole) if isinstance(whole, dict) else ():
                try:
                    record: Any = decode(msgspec.msgpack.encode(message), *KINDS)
                except SchemaError:
                    continue
                log.add(record, 1_700_000_000 + taken)
                taken += 1
        store.take(*log.take())
    assert taken > 300


class SixWords:
    """Stands in for a tokenizer that fails for tokens that it does not know, as those do that are written in Python."""

    all_special_ids: tuple[int, ...] = ()

    def __len__(self) -> int:
        return 6

    def batch_decode(self, tokens: list[list[int]]) -> list[str]:
        return [" ".join("abcdef"[token] for token in each) for each in tokens]


def test_tokens_of_another_model_have_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.console.index.group_rows.load_tokenizer", lambda _: SixWords())
    texts = load_texts(str(tmp_path))
    assert not isinstance(texts, str)
    log = LogRecords()
    # Its tokens are 1 to 5, and 6 in the second response.
    log.add(group("task", [0.0, 1.0]), 1_700_000_000)
    with Store(tmp_path / "index", texts=texts) as store:
        store.take(*log.take())
    assert texts([[4, 5], [4, 6, 2**31 - 1]]) == ["e f", "e"]
