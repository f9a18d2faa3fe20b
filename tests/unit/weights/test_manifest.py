import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.weights.errors import ManifestError
from trinity_bus.weights.layout import ITEM_SIZES, MAX_MANIFEST_BYTES, TensorMeta, TransferManifest

CONTENT = "0" * 64
GOOD: dict[str, Any] = {"version": 3, "content": CONTENT, "bucket_bytes": 64, "tensors": [["w", "float32", [2, 3]]]}

tensors = st.lists(
    st.builds(
        TensorMeta,
        st.text(min_size=1, max_size=20),
        st.sampled_from(sorted(ITEM_SIZES)),
        st.lists(st.integers(0, 100), max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda meta: meta.name,
)


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 30), tensors)
def test_a_manifest_comes_back_as_it_was(version: int, size: int, metas: list[TensorMeta]) -> None:
    manifest = TransferManifest(version, CONTENT, size, tuple(metas))
    assert TransferManifest.from_json(manifest.to_json()) == manifest


@given(st.integers(1, 1 << 30), tensors, st.data())
def test_the_checksum_is_of_all_but_the_version(size: int, metas: list[TensorMeta], data: st.DataObject) -> None:
    manifest = TransferManifest(0, CONTENT, size, tuple(metas))
    assert manifest.checksum == replace(manifest, version=7).checksum
    changed = data.draw(st.permutations(metas) | tensors)
    assert (replace(manifest, tensors=tuple(changed)).checksum == manifest.checksum) == (changed == metas)
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


@given(st.binary(max_size=200))
def test_nothing_but_a_manifest_error_comes_of_garbage(text: bytes) -> None:
    with pytest.raises(ManifestError):
        TransferManifest.from_json(text)


def test_size_is_looked_at_first() -> None:
    with pytest.raises(ManifestError, match="over the limit"):
        TransferManifest.from_json(b" " * (MAX_MANIFEST_BYTES + 1))
