"""Many short vectors of numbers as one buffer, little-endian: how token ids and log-probabilities travel."""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

INT32 = np.dtype("<i4")
FLOAT32 = np.dtype("<f4")
UINT8 = np.dtype("|u1")


class VectorColumn:
    """Vectors, one after the other. ``struct`` takes Python's lists three times as fast as NumPy does."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._parts: list[bytes | NDArray[Any]] = []

    def add(self, values: Any) -> int:
        """Append a vector and return its length; ValueError, TypeError or OverflowError: it is none of such numbers."""
        # An array of the column's type is copied when the buffer is made.
        if type(values) is list:
            try:
                self._parts.append(struct.pack(f"<{len(values)}{self._dtype.char}", *values))
            except struct.error as error:
                raise ValueError(str(error)) from error
            return len(values)
        vector = np.asarray(values, self._dtype, "C")
        if vector.ndim != 1:
            raise ValueError(f"an array of shape {list(vector.shape)} where a vector is needed")
        self._parts.append(vector)
        return len(vector)

    def ones(self, length: int) -> int:
        # Of numbers of one byte.
        self._parts.append(b"\1" * length)
        return length

    @property
    def buffer(self) -> memoryview:
        return memoryview(b"".join(self._parts))

    @property
    def array(self) -> Any:
        return np.frombuffer(b"".join(self._parts), self._dtype)
