"""Safetensors files, read straight into buffers and written a tensor at a time: a length, a JSON table, raw tensors.

The library maps the file into memory, and a mapping of a file that is cut short, or that a network file system has
lost, kills the process that touches it. Here every read is a call that can fail. The format: little-endian u64 length
of the header, then ``{name: {"dtype", "shape", "data_offsets": [begin, end]}}``, offsets from the end of the header.
Tensors of larger elements are written first, so that each can be viewed in place, and one is in memory at a time.

Failures: ``TensorFileError`` for a file that is not whole, not of this format, or whose name can be no file's. The
table is checked as a whole when the file is opened, against the size of the file: what it names can be read.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import msgspec
from msgspec import Meta

from trinity_bus.weights.errors import TensorFileError, WeightTransferError
from trinity_bus.weights.layout import ITEM_SIZES, TensorMeta

if TYPE_CHECKING:
    import torch

_LENGTH = struct.Struct("<Q")
MAX_HEADER_BYTES = 16 << 20  # of the table; a hundred bytes a tensor
MAX_DIMENSIONS = 64
_PIECE = 64 << 20  # of one read

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


type _Size = Annotated[int, Meta(ge=0, le=2**62)]


class _Row(msgspec.Struct, gc=False):
    """A tensor in the table, or its ``__metadata__``, whose keys are others."""

    dtype: str = ""
    shape: Annotated[tuple[_Size, ...], Meta(max_length=MAX_DIMENSIONS)] = ()
    data_offsets: tuple[_Size, _Size] | None = None


_decode_table = msgspec.json.Decoder(dict[str, _Row]).decode


class TensorFile:
    """An open safetensors file. A context manager. TensorFileError, OSError: it is none, or cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # A pipe that nobody writes to is an error, and no wait.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except ValueError as error:
            raise TensorFileError(f"{str(path)!r} is no file's name: {error}") from error
        try:
            self._table = self._read_table()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    @property
    def metas(self) -> list[TensorMeta]:
        return [meta for meta, _ in sorted(self._table.values(), key=lambda one: one[1])]

    def meta(self, name: str) -> TensorMeta:
        return self._find(name)[0]

    def tensor(self, name: str) -> "torch.Tensor":
        """Return a tensor, in memory of its own. Needs torch."""
        import torch

        meta = self.meta(name)
        raw = torch.empty(meta.nbytes, dtype=torch.uint8)
        self.read_part(name, 0, memoryview(raw.numpy()))
        return raw.view(getattr(torch, meta.dtype)).view(meta.shape)

    def read_part(self, name: str, offset: int, place: memoryview) -> None:
        meta, begin = self._find(name)
        if offset + len(place) > meta.nbytes:
            raise TensorFileError(f"{self._path}: {name} has {meta.nbytes} bytes, not {offset + len(place)}")
        begin += offset
        done = 0
        while done < len(place):
            count = os.preadv(self._descriptor, [place[done : done + _PIECE]], begin + done)
            if count == 0:
                raise TensorFileError(f"{self._path} ends within {name}")
            done += count

    def _find(self, name: str) -> tuple[TensorMeta, int]:
        found = self._table.get(name)
        if found is None:
            raise TensorFileError(f"{self._path} has no tensor {name!r}")
        return found

    def _read_table(self) -> dict[str, tuple[TensorMeta, int]]:
        prefix = os.pread(self._descriptor, _LENGTH.size, 0)
        length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else MAX_HEADER_BYTES + 1
        if length > MAX_HEADER_BYTES:
            raise TensorFileError(f"{self._path} is not a safetensors file")
        text = os.pread(self._descriptor, length, _LENGTH.size)
        if len(text) != length:
            raise TensorFileError(f"{self._path} ends within its table")
        try:
            table = _decode_table(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TensorFileError(f"{self._path} is not a safetensors file: {error}") from error
        begin, end = _LENGTH.size + length, os.fstat(self._descriptor).st_size
        return {name: self._tensor(name, row, begin, end) for name, row in table.items() if name != "__metadata__"}

    def _tensor(self, name: str, row: _Row, begin: int, end: int) -> tuple[TensorMeta, int]:
        # And where it lies, in a file whose tensors lie between ``begin`` and ``end``.
        dtype = _DTYPES.get(row.dtype)
        if dtype is None or row.data_offsets is None:
            raise TensorFileError(f"{self._path}: {name!r} has dtype {row.dtype!r} and lies at {row.data_offsets}")
        meta = TensorMeta(name, dtype, row.shape)
        first, last = row.data_offsets
        if last - first != meta.nbytes or begin + last > end:
            raise TensorFileError(
                f"{self._path}: {name!r} of {meta.nbytes} bytes lies at {first} to {last} of {end - begin}"
            )
        return meta, begin + first


def write_tensors(
    path: Path,
    tensors: "Callable[[], Iterable[tuple[str, torch.Tensor]]]",
    metadata: Mapping[str, str] | None = None,
) -> int:
    """Write a file. Return the bytes of its tensors.

    ``tensors`` gives names and tensors, each looked at before the next is asked for. It is called twice: what they are
    is written before what they hold. ValueError: there are two of a name, or other ones the second time.
    """
    import torch

    metas: dict[str, TensorMeta] = {}
    for name, tensor in tensors():
        meta = TensorMeta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        if metas.setdefault(name, meta) is not meta:
            raise ValueError(f"there are two tensors {name!r}")
    begins, end = {}, 0
    for meta in sorted(metas.values(), key=lambda one: -ITEM_SIZES[one.dtype]):
        begins[meta.name] = end
        end += meta.nbytes
    named = {dtype: name for name, dtype in _DTYPES.items()}
    table: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, begin in begins.items():
        meta = metas[name]
        offsets = [begin, begin + meta.nbytes]
        table[name] = {"dtype": named[meta.dtype], "shape": meta.shape, "data_offsets": offsets}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb", buffering=0) as file:
        _write(file.fileno(), memoryview(_LENGTH.pack(len(text)) + text), 0)
        for name, tensor in tensors():
            meta = metas[name]
            if (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) != (meta.dtype, meta.shape):
                raise ValueError(f"{name!r} has become {tensor.dtype} {tuple(tensor.shape)}")
            raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            _write(file.fileno(), memoryview(raw.numpy()), _LENGTH.size + len(text) + begins.pop(name))
        if begins:
            raise ValueError(f"{next(iter(begins))!r} did not come a second time")
    return end


def _write(descriptor: int, view: memoryview, at: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done : done + _PIECE], at + done)


# An adapter that is published alone means something beside the weights that it was trained beside, and is well formed
# beside any others. So it travels with their identity, as one more tensor (uint8), which its checksum covers; whoever
# is to serve it compares that with its own.
BASE: Final = "base.sha256"


def identity(folder: Path) -> bytes:
    """Return what tells the weights in a Hugging Face folder from others: a digest of its files, in order."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightTransferError(f"{folder} has no safetensors, by which explorers and trainer would know their base")
    whole = hashlib.sha256()
    try:
        for path in files:
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise WeightTransferError(f"{folder} cannot be read: {error}") from error
    return whole.digest()
