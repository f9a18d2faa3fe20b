from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.narrowing import some
from trinity_bus.weights.delta import Bytes, Change, apply, encode, payload_size
from trinity_bus.weights.errors import DeltaError
from trinity_bus.weights.layout import ITEM_SIZES, Bucket, TensorMeta, plan

NO_LIMIT = 1 << 60

metas = st.lists(
    st.tuples(st.sampled_from(sorted(ITEM_SIZES)), st.lists(st.integers(0, 40), max_size=2).map(tuple)),
    min_size=1,
    max_size=8,
).map(lambda rows: [TensorMeta(f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(rows)])


def buffers(layout: list[Bucket], rng: np.random.Generator) -> list[Bytes]:
    return [rng.integers(0, 256, bucket.nbytes, dtype=np.uint8) for bucket in layout]


def changed(layout: list[Bucket], base: list[Bytes], rng: np.random.Generator, share: float) -> list[Bytes]:
    """The base with about this share of its elements given other bytes; what is between tensors stays."""
    target = [buffer.copy() for buffer in base]
    for bucket, buffer in zip(layout, target, strict=True):
        for slot in bucket.slots:
            rows = buffer[slot.offset : slot.offset + slot.meta.nbytes].reshape(-1, ITEM_SIZES[slot.meta.dtype])
            chosen = rng.random(len(rows)) < share
            rows[chosen] = rng.integers(0, 256, rows[chosen].shape, dtype=np.uint8)
    return target


def joined(parts: Any) -> Bytes:
    return np.concatenate([np.empty(0, np.uint8), *parts])


@given(metas, st.integers(1, 4000), st.integers(0, 1 << 32), st.sampled_from([0.0, 0.01, 0.3, 1.0]))
def test_a_delta_leads_from_its_base_to_its_target(
    tensors: list[TensorMeta], size: int, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    layout = plan(tensors, size)
    base = buffers(layout, rng)
    target = changed(layout, base, rng, share)
    delta = some(encode(layout, base, target, NO_LIMIT))
    assert payload_size(layout, delta.changes) == delta.nbytes
    for _ in range(2):  # a second time it changes nothing
        apply(layout, base, delta.changes, joined(delta.payload))
        assert all(np.array_equal(a, b) for a, b in zip(base, target, strict=True))


@pytest.mark.parametrize("gap", [0, 255, 256, 65_535, 65_536, 70_000])
def test_distances_take_as_few_bytes_as_they_need(gap: int) -> None:
    layout = plan([TensorMeta("w", "bfloat16", (70_010,))], 1 << 20)
    base = [np.zeros(layout[0].nbytes, np.uint8)]
    target = [base[0].copy()]
    for element in (3, 3 + 1 + gap):
        target[0][2 * element] = 1
    delta = some(encode(layout, base, target, NO_LIMIT))
    width = 1 if gap < 256 else 2 if gap < 65_536 else 4
    assert delta.changes == (Change(0, 2, width),)
    apply(layout, base, delta.changes, joined(delta.payload))
    assert np.array_equal(base[0], target[0])


def test_zeros_of_either_sign_and_numbers_that_are_none_are_told_apart() -> None:
    layout = plan([TensorMeta("w", "float32", (3,))], 1 << 10)
    base = [np.array([0.0, np.nan, 1.0], np.float32).view(np.uint8)]
    target = [np.array([-0.0, np.nan, 1.0], np.float32).view(np.uint8)]
    delta = some(encode(layout, base, target, NO_LIMIT))
    assert delta.changes == (Change(0, 1, 1),)


def test_what_is_not_smaller_is_no_delta() -> None:
    layout = plan([TensorMeta("w", "bfloat16", (1000,))], 1 << 20)
    base = [np.zeros(2000, np.uint8)]
    few, all_of_it = base[0].copy(), np.ones(2000, np.uint8)
    few[:200:20] = 1
    sparse = some(encode(layout, base, [few], 2000))
    assert sparse.nbytes == 10 * 3
    assert encode(layout, base, [few], 30) is None
    assert encode(layout, base, [all_of_it], 2000) is None


@pytest.mark.parametrize(
    ("changes", "payload"),
    [
        ([Change(2, 1, 1)], 3), ([Change(0, 1, 1), Change(0, 1, 1)], 6), ([Change(1, 1, 1), Change(0, 1, 1)], 6),
        ([Change(-1, 1, 1)], 3), ([Change(0, 1, 3)], 5), ([Change(0, 5, 1)], 15), ([Change(0, 0, 1)], 0),
        ([Change(0, 1, 1)], 4),
    ],
)  # fmt: skip
def test_changes_that_do_not_fit_the_layout_are_refused(changes: list[Change], payload: int) -> None:
    layout = plan([TensorMeta("a", "bfloat16", (4,)), TensorMeta("b", "bfloat16", (4,))], 1 << 10)
    with pytest.raises(DeltaError):
        apply(layout, [np.zeros(layout[0].nbytes, np.uint8)], changes, np.zeros(payload, np.uint8))


@pytest.mark.parametrize("distances", [[4], [2, 1], [1 << 63, 1 << 63], [(1 << 64) - 1]])
def test_distances_that_lead_out_of_a_tensor_are_refused(distances: list[int]) -> None:
    layout = plan([TensorMeta("a", "bfloat16", (4,)), TensorMeta("b", "bfloat16", (4,))], 1 << 10)
    payload = joined([np.array(distances, "<u8").view(np.uint8), np.ones(2 * len(distances), np.uint8)])
    before = np.zeros(layout[0].nbytes, np.uint8)
    with pytest.raises(DeltaError, match="beyond"):
        apply(layout, [before], [Change(0, len(distances), 8)], payload)
    assert not before.any()
