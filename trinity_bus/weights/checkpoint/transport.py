"""Reading a version from the checkpoint that an announcement names: the member's end of ``checkpoint.publisher``.

::

    CLOSED --open: hold the folder, read its manifest--> OPEN --fill: read, convert, pack--> (done) --close--> CLOSED
                         |                                |
                         +--gone: VersionGoneError        +--cannot be read, other tensors: WeightTransferError

While it reads, the checkpoint is *held* by a shared lock, which the trainer's retention respects: it passes over a
checkpoint that is being read and removes it the next time. The lock ends with the process, however that ends. Where a
file system knows no such locks, a checkpoint may vanish under the reader; each read is a call that then fails, and the
explorer is named again for the newest version. Keep enough checkpoints that this is rare.

The order, the dtypes and the layout are those of the manifest, so the bytes in the buffers, and their checksum, are the
same as on every other way.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_bus.training import checkpoint
from trinity_bus.training.errors import CheckpointError
from trinity_bus.weights.buckets import Bucket, Slot
from trinity_bus.weights.checkpoint.published import WEIGHTS, delta_path, read_delta_head, read_manifest
from trinity_bus.weights.delta import Change
from trinity_bus.weights.errors import LinkError, TensorFileError, VersionGoneError, WeightTransferError
from trinity_bus.weights.tensor_file import TensorFile
from trinity_bus.weights.transport import Offer, Source

if TYPE_CHECKING:
    import torch

_PIECE = 16 << 20  # between two looks at whether it is still wanted


class CheckpointTransport:
    """A ``WeightTransport`` from checkpoint folders. It is used for one version."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._layout: list[Bucket] = []
        self._file: TensorFile | None = None
        self._delta: tuple[int, int] | None = None  # the delta's file, and where its payload begins
        self._cancelled = threading.Event()

    def open(self, source: Source, held: str | None, cancelled: threading.Event) -> Offer:
        self._cancelled = cancelled
        folder = Path(source.folder)
        if not source.folder or not folder.is_absolute():
            raise WeightTransferError(f"the announcement names no checkpoint folder: {source.folder!r}")
        try:
            self._open.enter_context(checkpoint.held(folder))
            manifest = read_manifest(folder, source.version)
            source.check(manifest)
            if held is not None and (changes := self._open_delta(folder, source, held)) is not None:
                return Offer(manifest, changes)
            self._file = TensorFile(folder / WEIGHTS)
            self._open.callback(self._file.close)
        except (CheckpointError, FileNotFoundError) as error:
            raise VersionGoneError(f"the checkpoint cannot be had any more: {error}") from error
        except OSError as error:
            if isinstance(error, WeightTransferError):
                raise
            raise WeightTransferError(f"{folder} cannot be read: {error}") from error
        self._layout = manifest.buckets()
        return Offer(manifest)

    def fill(self, buffers: "Iterable[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        try:
            if self._delta is not None:
                (payload,) = buffers
                self._read_payload(memoryview(payload.numpy()), *self._delta)
                arrived(0)
                return
            for i, (bucket, buffer) in enumerate(zip(self._layout, buffers, strict=True)):
                end = 0
                for slot in bucket.slots:
                    self._go_on()
                    buffer[end : slot.offset].zero_()
                    self._read_tensor(slot, buffer)
                    end = slot.offset + slot.meta.nbytes
                arrived(i)
        except OSError as error:
            if isinstance(error, WeightTransferError):
                raise
            raise WeightTransferError(f"the checkpoint cannot be read any more: {error}") from error

    def close(self) -> None:
        self._open.close()
        self._file = self._delta = None

    def _open_delta(self, folder: Path, source: Source, held: str) -> tuple[Change, ...] | None:
        try:
            descriptor = os.open(delta_path(folder, source.version), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        self._open.callback(os.close, descriptor)
        head, payload_at = read_delta_head(descriptor)
        if (head.base, head.target) != (held, source.checksum):
            return None
        self._delta = (descriptor, payload_at)
        return head.changes

    def _read_payload(self, place: memoryview, descriptor: int, payload_at: int) -> None:
        done = 0
        while done < len(place):
            self._go_on()
            count = os.preadv(descriptor, [place[done : done + _PIECE]], payload_at + done)
            if count == 0:
                raise TensorFileError("the delta ends before its payload does")
            done += count

    def _read_tensor(self, slot: Slot, buffer: "torch.Tensor") -> None:
        import torch

        file, meta = self._file, slot.meta
        assert file is not None  # noqa: S101 - ``open`` made it
        found = file.meta(meta.name)
        if found.shape != meta.shape:
            raise TensorFileError(f"{meta.name} has shape {found.shape} in the checkpoint, {meta.shape} was announced")
        place = buffer[slot.offset : slot.offset + meta.nbytes]
        if found.dtype == meta.dtype:
            file.read_into(meta.name, memoryview(place.numpy()))
            return
        place.view(getattr(torch, meta.dtype)).view(meta.shape).copy_(file.tensor(meta.name))

    def _go_on(self) -> None:
        if self._cancelled.is_set():
            raise LinkError("the transfer was cancelled")
