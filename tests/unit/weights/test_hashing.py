import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.weights import layout
from trinity_bus.weights.layout import ContentHash


def content(parts: list[bytes], piece: int) -> str:
    """The digest's definition."""
    pieces = [part[start : start + piece] for part in parts for start in range(0, len(part), piece)]
    return hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in pieces)).hexdigest()


@given(st.lists(st.binary(max_size=50), max_size=6), st.integers(1, 20), st.integers(1, 3))
def test_the_digest_is_of_the_pieces_in_order_by_any_threads(parts: list[bytes], piece: int, threads: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layout, "PIECE", piece)
        with ContentHash(threads) as digest:
            for part in parts:
                digest.put(torch.tensor(list(part), dtype=torch.uint8))
    assert digest.hexdigest() == content(parts, piece)


def test_what_cannot_be_hashed_is_raised_at_the_end() -> None:
    class Lost(torch.Tensor):
        def cpu(self, *_: object) -> torch.Tensor:
            raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="gone"), ContentHash() as digest:
        digest.put(torch.zeros(8, dtype=torch.uint8).as_subclass(Lost))
