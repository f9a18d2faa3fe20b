"""The bytes of a version as they lie in the files that its tensors are kept in anyway, in place of a copy in memory.

::

    ANNOUNCED --open: the files are there--> OPEN --nobody holds it any more--> (closed)
        '--a part is read--> opened then

A bucket is a part of the transfer (``buckets``), made up when it is asked for: no more of it than is wanted at once, in
the dtype in which it travels. Once open the files can be had even where their folder has been removed.

Failures: ``TensorFileError`` where a file is not what it was; ``OSError`` where it is not there, or cannot be read.
Whether the bytes are those that were announced, who takes them finds out.
"""

import contextlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

from trinity_bus.weights.buckets import ITEM_SIZES, Bucket, Slot
from trinity_bus.weights.errors import TensorFileError
from trinity_bus.weights.tensor_file import TensorFile

if TYPE_CHECKING:
    import numpy as np
    import torch

_INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = "model.safetensors"


class FileBucket:
    """One bucket; slices of it are uint8 tensors that are read from the files."""

    def __init__(self, files: "FileBuckets", bucket: Bucket) -> None:
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

    def __array__(self, *_: Any, **__: Any) -> "np.ndarray[Any, Any]":
        whole: np.ndarray[Any, Any] = self[:].numpy()
        return whole


class FileBuckets(Sequence[FileBucket]):
    """All buckets of a version, whose tensors ``folder`` has under the same names. May be used from any thread."""

    def __init__(self, folder: Path, layout: Sequence[Bucket]) -> None:
        self._folder = folder
        self._buckets = [FileBucket(self, bucket) for bucket in layout]
        self._lock = threading.Lock()
        self._open: dict[str, TensorFile] | None = None  # by the name of a tensor
        self._closing = contextlib.ExitStack()

    def __len__(self) -> int:
        return len(self._buckets)

    @overload
    def __getitem__(self, index: int) -> FileBucket: ...
    @overload
    def __getitem__(self, index: slice) -> list[FileBucket]: ...
    def __getitem__(self, index: int | slice) -> FileBucket | list[FileBucket]:
        return self._buckets[index]

    def __del__(self) -> None:
        self._closing.close()

    def open(self) -> "dict[str, TensorFile]":
        """Open the files, unless they are; each by the names of its tensors."""
        with self._lock:
            if self._open is None:
                names = {_WEIGHTS}
                with contextlib.suppress(FileNotFoundError):
                    names = set(json.loads((self._folder / _INDEX).read_bytes())["weight_map"].values())
                # A name that leads out of the folder is not followed.
                with contextlib.ExitStack() as opening:
                    files = [opening.enter_context(TensorFile(self._folder / Path(name).name)) for name in names]
                    self._open = {meta.name: file for file in files for meta in file.metas}
                    # Not those of a try that fails: another one opens them anew.
                    self._closing = opening.pop_all()
            return self._open

    def read(self, slot: Slot, offset: int, place: "torch.Tensor") -> None:
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
        width, kept_width = ITEM_SIZES[meta.dtype], ITEM_SIZES[kept]
        raw = torch.empty(len(place) // width * kept_width, dtype=torch.uint8)
        file.read_part(meta.name, offset // width * kept_width, memoryview(raw.numpy()))
        place.view(getattr(torch, meta.dtype)).copy_(raw.view(getattr(torch, kept)))
