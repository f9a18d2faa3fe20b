"""Staged versions: whole models, packed, hashed, and kept while somebody reads them; in memory, or in files.

::

    tensors --stage: convert, pack--> bucket after bucket --hash beside the next--> STAGED --newer ones--> retired
                                                                                      |  lease / release
                                                                                      +--> buffers are used again

Staging copies, so training may go on at once: gathering, converting and packing a bucket overlap hashing the one
before. It is the one place at which weights change their dtype on the way to the engines.

Where a version is in files as well by the time that it is asked for, no copy is kept: a ``FileBucket`` makes up what is
asked for, in the dtype in which it travels. Once open, the files can be had even where their folder has been removed.

Failures: a version that is not staged, or has another checksum than was asked for, is refused with what there is. The
buffers of a lease that ended badly are *spoiled*: pending operations may still read them, so they are given up.
``TensorFileError`` where a file is not what it was; ``OSError`` where it is not there, or cannot be read.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trinity_bus.runtime.device import host_buffer, uses_gpu
from trinity_bus.weights import layout
from trinity_bus.weights.errors import TensorFileError, VersionGoneError, WeightTransferError
from trinity_bus.weights.tensor_file import MAX_HEADER_BYTES, TensorFile

if TYPE_CHECKING:
    import torch

_INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = "model.safetensors"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


_decode_index = msgspec.json.Decoder(_Index).decode


class FileBucket:
    """One bucket; slices of it are uint8 tensors that are read from the files."""

    def __init__(self, files: "ModelFiles", bucket: layout.Bucket) -> None:
        self._files = files
        self._bucket = bucket

    def __len__(self) -> int:
        return self._bucket.nbytes

    def __getitem__(self, part: slice) -> "torch.Tensor":
        import torch

        start, end, _ = part.indices(len(self))
        # Zeros are between tensors.
        found = torch.zeros(end - start, dtype=torch.uint8)
        for slot in self._bucket.slots:
            first, last = max(start, slot.offset), min(end, slot.offset + slot.meta.nbytes)
            if first < last:
                self._files.read(slot, first - slot.offset, found[first - start : last - start])
        return found


class ModelFiles:
    """The safetensors files of a Hugging Face folder. May be used from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._open: dict[str, TensorFile] | None = None  # by the name of a tensor
        self._closing = contextlib.ExitStack()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        self._closing.close()

    def open(self) -> "dict[str, TensorFile]":
        """Open the files, unless they are; each by the names of its tensors."""
        with self._lock:
            if self._open is None:
                with contextlib.ExitStack() as opening:
                    files = [opening.enter_context(TensorFile(self._folder / name)) for name in self._names()]
                    self._open = {meta.name: file for file in files for meta in file.metas}
                    # Not those of a try that fails: another one opens them anew.
                    self._closing = opening.pop_all()
            return self._open

    def _names(self) -> set[str]:
        try:
            with (self._folder / _INDEX).open("rb") as file:
                index = _decode_index(file.read(MAX_HEADER_BYTES))
        except FileNotFoundError:
            return {_WEIGHTS}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TensorFileError(f"{self._folder / _INDEX} names no files: {error}") from error
        # A name that leads out of the folder is not followed.
        return {Path(name).name for name in index.weight_map.values()}

    def read(self, slot: layout.Slot, offset: int, place: "torch.Tensor") -> None:
        """Fill ``place`` with bytes of a tensor, from ``offset`` on, whole elements as it travels."""
        import torch

        meta = slot.meta
        file = self.open().get(meta.name)
        if file is None or file.meta(meta.name).shape != meta.shape:
            raise TensorFileError(f"{self._folder} has no tensor {meta.name!r} of shape {meta.shape}")
        kept = file.meta(meta.name).dtype
        if kept == meta.dtype:
            file.read_part(meta.name, offset, memoryview(place.numpy()))
            return
        width, kept_width = layout.ITEM_SIZES[meta.dtype], layout.ITEM_SIZES[kept]
        raw = torch.empty(len(place) // width * kept_width, dtype=torch.uint8)
        file.read_part(meta.name, offset // width * kept_width, memoryview(raw.numpy()))
        place.view(getattr(torch, meta.dtype)).copy_(raw.view(getattr(torch, kept)))


DEFAULT_BUCKET_BYTES = 64 << 20  # large, because each bucket costs a round trip
HASHED_AT_ONCE = 4  # buckets that wait for their hashes, where they are used again


@dataclass(slots=True)
class Staged:
    manifest: layout.TransferManifest
    buffers: "Sequence[torch.Tensor | FileBucket]"  # uint8, one for each bucket, of its size
    # What the buffers are views of; a bucket need not fill it. Empty where they are in files.
    memory: "list[torch.Tensor]"
    # See ``layout``
    chunk_hashes: bytes = b""
    piece_digests: bytes = b""
    files: ModelFiles | None = None
    leases: int = 0
    spoiled: bool = False  # a broken link may still read the buffers

    def chunks(self) -> list[layout.Span]:
        return layout.spans(map(len, self.buffers), self.manifest.bucket_bytes)


class Staging:
    """Keeps the newest versions. All methods may be called from any thread.

    The ``retain`` newest ones can be leased, and the one that is to be kept. Floating-point tensors are converted to
    ``dtype``; unset: they are not. ``chunks``: each chunk is hashed, too.
    """

    def __init__(self, *, bucket_bytes: int, retain: int, dtype: str | None = None, chunks: bool = False) -> None:
        self.bucket_bytes = bucket_bytes
        self._retain = retain
        self._dtype = dtype
        self._chunks = chunks
        self._lock = threading.Lock()
        self._staged: dict[int, Staged] = {}
        self._kept: int | None = None
        self._spare: list[torch.Tensor] = []

    def stage(
        self, version: int, named_tensors: "Iterable[tuple[str, torch.Tensor]]", folder: Path | None = None
    ) -> layout.TransferManifest:
        """Copy a version into buffers, or find its hashes alone, replacing what was staged under the same number.

        Names and tensors are as in a Hugging Face checkpoint, always in the same order. Each is looked at before the
        next is asked for. ``folder``: whose files have the very same tensors when the version is first read. Where
        there is a GPU it is copied in any case: pinned memory is read faster than files.
        """
        is_kept = folder is None or uses_gpu()
        packing = _Packing(self, is_kept=is_kept)
        with layout.ContentHash(bucket_bytes=self.bucket_bytes if self._chunks else None) as digest:
            for name, tensor in named_tensors:
                packing.add(name, tensor, digest)
            packing.close_bucket(digest)
        if not packing.metas:
            raise WeightTransferError(f"version {version} has no tensors; there is nothing to serve")
        manifest = layout.TransferManifest(version, digest.hexdigest(), self.bucket_bytes, tuple(packing.metas))
        # Fails here, where the version is made, rather than when it is served.
        manifest.to_json()
        files = None if folder is None or is_kept else ModelFiles(folder)
        buffers = packing.buffers if files is None else [FileBucket(files, bucket) for bucket in manifest.buckets()]
        with self._lock:
            replaced = self._staged.pop(version, None)
            self._staged[version] = Staged(
                manifest, buffers, packing.memory, digest.chunk_hashes, digest.piece_digests, files
            )
            # What was used before and is not now had another size: the model has changed, and it will not come back.
            self._spare.clear()
            if replaced is not None:
                self._recycle(replaced)
            self._retire()
        return manifest

    def open(self, version: int) -> None:
        """Open the files of a version that is in files: they can be had from now on, even if they are removed."""
        with self._lock:
            staged = self._staged.get(version)
        if staged is not None and staged.files is not None:
            staged.files.open()

    def keep(self, version: int) -> None:
        """Keep this version, if it is staged, until another is named here; beside the newest, not as one of them."""
        with self._lock:
            self._kept = version
            self._retire()

    @contextlib.contextmanager
    def lease(self, version: int, checksum: str) -> Iterator[Staged]:
        """Provide a version whose buffers stay as they are within the context, or raise VersionGoneError."""
        with self._lock:
            staged = self._staged.get(version)
            if staged is None:
                raise VersionGoneError(f"version {version} is not staged; there are {list(self._staged)}")
            if staged.manifest.checksum != checksum:
                raise VersionGoneError(f"version {version} has checksum {staged.manifest.checksum}, not {checksum}")
            staged.leases += 1
        try:
            yield staged
        finally:
            with self._lock:
                staged.leases -= 1
                self._recycle(staged)

    def buffer(self, nbytes: int) -> "torch.Tensor":
        """Return memory of this size; used before where there is some, because fresh memory costs page faults."""
        with self._lock:
            # The last that came: it is the likeliest to be in a cache.
            for i in reversed(range(len(self._spare))):
                if self._spare[i].numel() == nbytes:
                    return self._spare.pop(i)
        return host_buffer(nbytes)

    def give_back(self, memory: "torch.Tensor") -> None:
        with self._lock:
            self._spare.append(memory)

    def travelling_dtype(self, tensor: "torch.Tensor") -> "torch.dtype":
        import torch

        if self._dtype is None or not tensor.is_floating_point():
            return tensor.dtype
        dtype: torch.dtype = getattr(torch, self._dtype)
        return dtype

    def _retire(self) -> None:
        # With the lock held: lets go of versions that are neither among the newest nor to be kept.
        for number in list(self._staged)[: -self._retain]:
            if number != self._kept:
                self._recycle(self._staged.pop(number))

    def _recycle(self, staged: Staged) -> None:
        # With the lock held: the buffers are used again if nothing can lease or reads them any more.
        if staged.leases == 0 and not staged.spoiled and self._staged.get(staged.manifest.version) is not staged:
            self._spare += staged.memory


class _Packing:
    """Tensors on their way into buckets, as ``layout.plan`` says; ``is_kept``: for more than to be hashed."""

    def __init__(self, staging: Staging, *, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._hashing: deque[tuple[torch.Tensor, list[Future[Any]]]] = deque()
        self.metas: list[layout.TensorMeta] = []
        self.buffers: list[torch.Tensor] = []
        self.memory: list[torch.Tensor] = []
        self._staging = staging
        self._open: torch.Tensor | None = None
        self._end = 0

    def add(self, name: str, tensor: "torch.Tensor", digest: layout.ContentHash) -> None:
        kind = self._staging.travelling_dtype(tensor)
        meta = layout.TensorMeta(name, str(kind).removeprefix("torch."), tuple(tensor.shape))
        self.metas.append(meta)
        offset = -(-self._end // layout.ALIGNMENT) * layout.ALIGNMENT
        if self._open is not None and offset + meta.nbytes > self._staging.bucket_bytes:
            self.close_bucket(digest)
            offset = 0
        if self._open is None:
            self._open = self._staging.buffer(max(self._staging.bucket_bytes, meta.nbytes))
        self._open[self._end : offset].zero_()
        self._end = offset + meta.nbytes
        self._open[offset : self._end].view(kind).view(tensor.shape).copy_(tensor.detach())

    def close_bucket(self, digest: layout.ContentHash) -> None:
        if self._open is None:
            return
        buffer = self._open[: self._end]
        hashes = digest.put(buffer)
        if self._is_kept:
            self.buffers.append(buffer)
            self.memory.append(self._open)
        else:
            self._hashing.append((self._open, hashes))
            if len(self._hashing) >= HASHED_AT_ONCE:
                memory, done = self._hashing.popleft()
                wait(done)
                self._staging.give_back(memory)
        self._open, self._end = None, 0
