import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.weights.layout import ALIGNMENT, ITEM_SIZES, TensorMeta, plan

metas = st.lists(
    st.builds(
        TensorMeta,
        st.text(min_size=1, max_size=8),
        st.sampled_from(sorted(ITEM_SIZES)),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ),
    max_size=30,
)


@given(metas, st.integers(1, 2000))
def test_every_tensor_has_one_place_in_order_and_none_overlap(tensors: list[TensorMeta], bucket_bytes: int) -> None:
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


@given(metas, st.integers(1, 2000))
def test_a_bucket_is_closed_when_the_next_tensor_does_not_fit(tensors: list[TensorMeta], bucket_bytes: int) -> None:
    buckets = plan(tensors, bucket_bytes)
    for bucket, following in itertools.pairwise(buckets):
        padded = -(-bucket.nbytes // ALIGNMENT) * ALIGNMENT
        assert padded + following.slots[0].meta.nbytes > bucket_bytes


def test_a_bucket_needs_room() -> None:
    with pytest.raises(ValueError, match="bucket_bytes is 0"):
        plan([], 0)
