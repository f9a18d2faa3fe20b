"""How tensors lie in buckets and chunks, the digest of their bytes, and the manifest that says all of it."""

import hashlib
import itertools
import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from trinity_bus.runtime.object_store import PIECE
from trinity_bus.weights import layout
from trinity_bus.weights.errors import ManifestError
from trinity_bus.weights.layout import (
    ALIGNMENT,
    ITEM_SIZES,
    MAX_CHUNKS,
    MAX_MANIFEST_BYTES,
    Bucket,
    ContentHash,
    TensorMeta,
    TransferManifest,
    chunk_bytes,
    plan,
    spans,
)

CONTENT = "0" * 64
GOOD: dict[str, Any] = {"version": 3, "content": CONTENT, "bucket_bytes": 64, "tensors": [["w", "float32", [2, 3]]]}

metas = st.lists(
    st.builds(
        TensorMeta,
        st.text(min_size=1, max_size=20),
        st.sampled_from(sorted(ITEM_SIZES)),
        st.lists(st.integers(0, 9) | st.integers(0, 100), max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda meta: meta.name,
)


@given(metas, st.integers(1, 2000))
def test_every_tensor_has_one_place_in_order_and_a_bucket_is_closed_when_the_next_one_does_not_fit(
    tensors: list[TensorMeta], bucket_bytes: int
) -> None:
    buckets = plan(tensors, bucket_bytes)
    assert [slot.meta for bucket in buckets for slot in bucket.slots] == tensors
    for bucket in buckets:
        end = 0
        for slot in bucket.slots:
            assert slot.offset >= end
            assert slot.offset % ALIGNMENT == 0
            assert slot.offset - end < ALIGNMENT
            end = slot.offset + slot.meta.nbytes
        assert bucket.nbytes == end
        assert bucket.nbytes <= bucket_bytes or len(bucket.slots) == 1
    for bucket, following in itertools.pairwise(buckets):
        padded = -(-bucket.nbytes // ALIGNMENT) * ALIGNMENT
        assert padded + following.slots[0].meta.nbytes > bucket_bytes


def test_a_bucket_needs_room() -> None:
    with pytest.raises(ValueError, match="bucket_bytes is 0"):
        plan([], 0)


@pytest.mark.parametrize("bucket_bytes", [1, 4096, 64 << 20, 512 << 20, 8 << 30])
def test_chunks_fill_buckets_and_the_pieces_of_the_checksum(bucket_bytes: int) -> None:
    size = chunk_bytes(bucket_bytes, 0)
    assert PIECE % size == 0
    buckets = [Bucket((), nbytes) for nbytes in (3 * size + 5, size, 1)]
    assert spans((bucket.nbytes for bucket in buckets), bucket_bytes) == [
        (0, 0, size),
        (0, size, 2 * size),
        (0, 2 * size, 3 * size),
        (0, 3 * size, 3 * size + 5),
        (1, 0, size),
        (2, 0, 1),
    ]


def test_a_version_of_hundreds_of_gigabytes_is_passed_on_too() -> None:
    buckets = [16 << 20] * ((470 << 30) // (16 << 20))
    chunks = spans(buckets, 16 << 20)
    assert len(chunks) <= MAX_CHUNKS // 4
    sizes = [end - start for _, start, end in chunks]
    # Small where the version is: the chunks of a small model's are as they were.
    assert (sizes[0], sizes[-1]) == (256 << 10, PIECE)
    assert sizes == sorted(sizes)
    assert sum(sizes) == sum(buckets)


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


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 30), metas, st.data())
def test_a_manifest_comes_back_as_it_was_and_its_checksum_is_of_all_but_the_version(
    version: int, size: int, tensors: list[TensorMeta], data: st.DataObject
) -> None:
    manifest = TransferManifest(version, CONTENT, size, tuple(tensors))
    assert TransferManifest.from_json(manifest.to_json()) == manifest
    assert manifest.checksum == replace(manifest, version=version + 7).checksum
    changed = data.draw(st.permutations(tensors) | metas)
    assert (replace(manifest, tensors=tuple(changed)).checksum == manifest.checksum) == (changed == tensors)
    assert replace(manifest, bucket_bytes=size + 1).checksum != manifest.checksum
    assert replace(manifest, content="1" + CONTENT[1:]).checksum != manifest.checksum


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": -1}, r">= 0 - at `\$.version`"),
        ({"version": True}, r"got `bool` - at `\$.version`"),
        ({"version": 1 << 60}, r"<= 4398046511104 - at `\$.version`"),
        ({"bucket_bytes": 0}, r">= 1 - at `\$.bucket_bytes`"),
        ({"content": "abc"}, r"at `\$.content`"),
        ({"content": "0" * 64 + "\n"}, r"at `\$.content`"),
        ({"tensors": []}, r"length >= 1 - at `\$.tensors`"),
        ({"tensors": [["w", "float32"]]}, r"at `\$.tensors\[0\]`"),
        ({"tensors": [["w", "object", [1]]]}, "dtype 'object'"),
        ({"tensors": [["w", "__class__", [1]]]}, "dtype '__class__'"),
        ({"tensors": [["w", "float32", [-1]]]}, r"at `\$.tensors\[0\]\[2\]\[0\]`"),
        ({"tensors": [["w", "float32", [1.5]]]}, r"got `float` - at `\$.tensors\[0\]\[2\]\[0\]`"),
        ({"tensors": [["w", "float32", [1] * 9]]}, r"length <= 8 - at `\$.tensors\[0\]\[2\]`"),
        ({"tensors": [["w", "float32", [1 << 41, 1 << 20]]]}, "over the limit"),
        ({"tensors": [["", "float32", [1]]]}, r"length >= 1 - at `\$.tensors\[0\]\[0\]`"),
        ({"tensors": [["w", "float32", [1]], ["w", "float32", [1]]]}, "twice"),
    ],
)
def test_what_is_wrong_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ManifestError, match=complaint):
        TransferManifest.from_json(json.dumps(GOOD | change).encode())


def test_size_is_looked_at_first() -> None:
    with pytest.raises(ManifestError, match="over the limit"):
        TransferManifest.from_json(b" " * (MAX_MANIFEST_BYTES + 1))
