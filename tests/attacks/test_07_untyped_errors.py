"""Attack 7: bytes that made readers raise what nobody had said that they raise.

Before: ``UnicodeDecodeError`` for 1,433 of 60,000 damaged frames of runners, ``OverflowError`` from a tensor file whose
table has huge offsets, ``ValueError`` for a name with a NUL. Now each reader raises the errors that it names.
"""

import json
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest

from trinity_bus.runners import control, messages
from trinity_bus.runtime.frames import ProtocolError
from trinity_bus.weights.errors import TensorFileError
from trinity_bus.weights.tensor_file import TensorFile


def test_text_of_a_frame_that_is_not_utf8_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="utf-8"):
        messages.to_explorer(msgpack.packb([9, 1, b"\xff", "no"]).replace(b"\xc4\x01\xff", b"\xa1\xff"))
    with pytest.raises(ProtocolError, match="utf-8"):
        control.FROM_FORK_SERVER.decode(control.FROM_FORK_SERVER.encode(control.LoadFailed("?")).replace(b"?", b"\xff"))


@pytest.mark.parametrize(
    "states",
    [[[{}] * 60_000] * 8, {str(i): -20 for i in range(50_000)}, ["x" * 100] * 20_000],
    ids=["nested", "wide", "long"],
)
def test_what_a_workflow_has_set_cannot_fill_the_explorer(states: Any) -> None:
    with pytest.raises(ProtocolError, match="states"):
        messages.to_explorer(msgpack.packb([11, {1: {"a": states}}]))


def test_what_workflows_usually_set_is_read() -> None:
    states = {job: {"note": "x" * 500, "turns": list(range(50))} for job in range(60)}
    body = msgpack.packb([11, states])
    assert len(body) > 30_000
    assert messages.to_explorer(body) == messages.Pong(states)


def tensor_file(folder: Path, table: Any, data: bytes = bytes(32)) -> Path:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def row(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    "table",
    [
        row(data_offsets=[2**63, 2**63 + 8]),
        row(data_offsets=[2**62, 2**62 + 8]),
        row(data_offsets=[2**100, 2**100 + 8]),
        row(data_offsets=[-8, 0]),
        row(data_offsets=[8, 0]),
        row(data_offsets=[30, 38]),
        row(data_offsets=None),
        row(shape=[2**62] * 64),
        row(shape=[1] * 65),
        row(shape=[-2]),
        row(shape=[2.0]),
        row(shape=[True]),
        row(dtype="F4"),
        row(dtype=7),
        {"a": []},
        [],
        b"",
        b'{"a": {"dtype": "\xff"}}',
        b'{"a": ' + b"[" * 100_000,
        b'{"a": {"shape": [' + b"9" * 5000 + b"]}}",
    ],
)
def test_a_table_that_is_wrong_is_a_tensor_file_error(table: Any, tmp_path: Path) -> None:
    with pytest.raises(TensorFileError, match=r"model\.safetensors"), TensorFile(tensor_file(tmp_path, table)):
        pass


def test_a_name_that_no_file_can_have_is_a_tensor_file_error(tmp_path: Path) -> None:
    with pytest.raises(TensorFileError, match="no file's name"):
        TensorFile(tmp_path / "a\0b")


def test_a_good_file_is_read(tmp_path: Path) -> None:
    data = bytes(range(16))
    table = row() | {"b": {"dtype": "U8", "shape": [8], "data_offsets": [8, 16]}, "__metadata__": {"format": "pt"}}
    with TensorFile(tensor_file(tmp_path, table, data)) as file:
        assert [meta.name for meta in file.metas] == ["a", "b"]
        place = bytearray(8)
        file.read_part("b", 0, memoryview(place))
        assert bytes(place) == data[8:]
        with pytest.raises(TensorFileError, match="has no tensor 'c'"):
            file.meta("c")
