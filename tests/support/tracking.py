"""What trackers have written, read as the pages that show it do."""

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

_BLOCK: Final = 32_768
_HEAD: Final = struct.Struct("<IHB")
_WHOLE, _LAST = 1, 4


def board_events(folder: Path) -> Counter[tuple[int, float]]:
    """Return how often each step and time is in TensorBoard's files of a folder."""
    return Counter(
        (event.step, event.wall_time)
        for file in sorted(folder.iterdir())
        for event in EventFileLoader(str(file)).Load()
        if event.HasField("summary")
    )


def wandb_rows(file: Path) -> Iterator[dict[str, str]]:
    """Return the rows of an offline run of Weights & Biases, values as JSON: LevelDB's log format, behind 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record = file.read_bytes(), 7, b""
    while at + _HEAD.size <= len(data):
        if _BLOCK - at % _BLOCK < _HEAD.size:
            at += _BLOCK - at % _BLOCK
            continue
        _, size, kind = _HEAD.unpack_from(data, at)
        record += data[at + _HEAD.size : at + _HEAD.size + size]
        at += _HEAD.size + size
        if kind in {_WHOLE, _LAST}:
            told = Record.FromString(record)
            record = b""
            if told.HasField("history"):
                yield {item.key or "/".join(item.nested_key): item.value_json for item in told.history.item}
