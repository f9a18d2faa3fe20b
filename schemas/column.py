"""A column of an experience group, as the wire and its description have it."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    dtype_name: str  # NumPy's name, with the byte order
    # the shape of one row, empty for a buffer of one dimension; a word stands for a size that each group has
    tail: tuple[int | str, ...]
    length: str
    meaning: str

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype_name)
