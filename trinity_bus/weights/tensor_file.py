"""Reading a safetensors file straight into buffers: eight bytes of length, a JSON table, raw tensors.

The library maps the file into memory; a mapping of a file that is cut short, or that a network file system has lost,
kills the process that touches it. Here every read is a call that can fail. The format is as documented by its makers:
little-endian u64 length of the header, then ``{name: {"dtype", "shape", "data_offsets": [begin, end]}}``, offsets from
the end of the header.

Failures: ``TensorFileError`` for a file that is not whole or not of this format, with its name.
"""

import json
import math
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from trinity_bus.weights.buckets import ITEM_SIZES, TensorMeta
from trinity_bus.weights.errors import TensorFileError

if TYPE_CHECKING:
    import torch

_LENGTH = struct.Struct("<Q")
MAX_HEADER_BYTES = 64 << 20
_PIECE = 64 << 20
"""Bytes of one read."""

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


class TensorFile:
    """An open safetensors file. A context manager.

    Args:
        path: Its place.

    Raises:
        TensorFileError: It is not of this format.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._begin, self._table = self._read_table()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    @property
    def metas(self) -> list[TensorMeta]:
        """Every tensor, in the order in which they lie.

        Raises:
            TensorFileError: The table is malformed.
        """
        found = [self._find(name) for name in self._table if name != "__metadata__"]
        return [meta for meta, _ in sorted(found, key=lambda one: one[1])]

    def meta(self, name: str) -> TensorMeta:
        """A tensor as it is in the file.

        Raises:
            TensorFileError: It is not there.
        """
        return self._find(name)[0]

    def tensor(self, name: str) -> "torch.Tensor":
        """A tensor, in memory of its own. Needs torch.

        Raises:
            TensorFileError: It is not there, or the file ends before it does.
        """
        import torch

        meta = self.meta(name)
        raw = torch.empty(meta.nbytes, dtype=torch.uint8)
        self.read_into(name, memoryview(raw.numpy()))
        return raw.view(getattr(torch, meta.dtype)).view(meta.shape)

    def read_into(self, name: str, place: memoryview) -> None:
        """Read a tensor's bytes.

        Args:
            name: The tensor.
            place: As many bytes as it has.

        Raises:
            TensorFileError: It is not there, has another size, or the file ends before it does.
        """
        meta, begin = self._find(name)
        if meta.nbytes != len(place):
            raise TensorFileError(f"{self._path}: {name} has {meta.nbytes} bytes, not {len(place)}")
        done = 0
        while done < len(place):
            count = os.preadv(self._descriptor, [place[done : done + _PIECE]], begin + done)
            if count == 0:
                raise TensorFileError(f"{self._path} ends within {name}")
            done += count

    def _find(self, name: str) -> tuple[TensorMeta, int]:
        row = self._table.get(name)
        match row:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
                pass
            case _:
                raise TensorFileError(f"{self._path} has no tensor {name!r}")
        if dtype not in _DTYPES or not all(type(size) is int and size >= 0 for size in shape):
            raise TensorFileError(f"{self._path}: {name} has dtype {dtype!r} and shape {str(shape)[:100]}")
        meta = TensorMeta(name, _DTYPES[dtype], tuple(shape))
        if begin < 0 or end - begin != math.prod(shape) * ITEM_SIZES[meta.dtype]:
            raise TensorFileError(f"{self._path}: {name} lies at {begin} to {end}")
        return meta, self._begin + begin

    def _read_table(self) -> tuple[int, dict[str, Any]]:
        prefix = os.pread(self._descriptor, _LENGTH.size, 0)
        length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else MAX_HEADER_BYTES + 1
        if length > MAX_HEADER_BYTES:
            raise TensorFileError(f"{self._path} is not a safetensors file")
        text = os.pread(self._descriptor, length, _LENGTH.size)
        try:
            table = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TensorFileError(f"{self._path} is not a safetensors file: {error}") from error
        if len(text) != length or not isinstance(table, dict):
            raise TensorFileError(f"{self._path} is not a safetensors file")
        return _LENGTH.size + length, table
