"""The sets of tokens that response tokens were drawn from come back from their bytes, which are few."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas import ExperienceGroup
from schemas.codec import EncodeError, decode, encode
from schemas.experience import Int32
from schemas.groups.kept import (
    GROUP_KEPT_BYTES,
    MAX_KEPT_BYTES,
    KeptTokens,
    decode_kept,
    encode_kept,
    extended,
    small_enough,
)
from tests.support.fakes.experiences import kept_of
from tests.unit.schemas.record_strategies import full_group, kept_sets

responses = st.lists(kept_sets.map(sorted), max_size=12)


def nested(sets: KeptTokens) -> list[list[int]]:
    return [part.tolist() for part in np.split(sets.ids, np.cumsum(sets.counts))[:-1]]


@given(responses)
def test_sets_come_back(sets: list[list[int]]) -> None:
    assert nested(decode_kept(kept_of(*sets), len(sets))) == sets


@given(responses, responses, st.booleans(), st.booleans())
def test_sets_of_two_parts_follow_each_other(
    first: list[list[int]],
    second: list[list[int]],
    known: bool,
    told: bool,
) -> None:
    begun = extended(None, 0, kept_of(*first) if known else None, len(first))
    joined = extended(begun, len(first), kept_of(*second) if told else None, len(second))
    expected = [*(first if known else [[]] * len(first)), *(second if told else [[]] * len(second))]
    assert (joined is None) == (not known and not told)
    assert joined is None or nested(decode_kept(joined, len(expected))) == expected


@given(responses, st.data())
def test_the_sets_of_some_tokens_are_theirs(sets: list[list[int]], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(sets) - 1), max_size=6) if sets else st.just([]))
    some = decode_kept(kept_of(*sets), len(sets)).of(np.array(places, np.int64))
    assert nested(some) == [sets[place] for place in places]


@given(st.binary(max_size=40), st.integers(0, 6))
def test_any_bytes_are_sets_or_an_error(data: bytes, tokens: int) -> None:
    try:
        found = decode_kept(data, tokens)
    except ValueError:
        return
    assert len(found.counts) == tokens
    assert nested(decode_kept(encode_kept(found), tokens)) == nested(found)


@pytest.mark.parametrize("ids", [[3, 3], [4, 3], [-1], [2**31]], ids=str)
def test_ids_ascend_and_are_ids(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="an id twice, out of order, or that is none"):
        encode_kept(KeptTokens(np.array([len(ids)]), np.array(ids)))


def test_neighbours_take_a_byte_each() -> None:
    assert len(kept_of(range(5000, 5100))) == 1 + 2 + 99
    assert bytes(3) == kept_of([], [], [])


@pytest.mark.parametrize("size", [-1, MAX_KEPT_BYTES + 1])
def test_sizes_have_limits(size: int) -> None:
    group = full_group()
    sizes: Int32 = np.array([size, 0], np.int32)
    with pytest.raises(EncodeError, match=f"kept_sizes has {size}; 0 to {MAX_KEPT_BYTES} are allowed"):
        encode(replace(group, kept_sizes=sizes))
    with pytest.raises(EncodeError, match="kept has 13 rows for 10 kept"):
        encode(replace(group, kept_sizes=np.array([10, 0], np.int32)))
    with pytest.raises(EncodeError, match="of kept_sizes and kept there is one without the other"):
        encode(replace(group, kept=None))


def test_where_the_sets_of_a_group_do_not_all_fit_there_are_none() -> None:
    most = GROUP_KEPT_BYTES // MAX_KEPT_BYTES
    fit: list[bytes | None] = [b"12", None, *[bytes(MAX_KEPT_BYTES)] * (most - 1)]
    assert small_enough(fit) == [one or b"" for one in fit]
    for beyond in (MAX_KEPT_BYTES + 1, MAX_KEPT_BYTES - 1):
        assert small_enough([*fit, bytes(beyond)]) == [b""] * (most + 2)
    assert small_enough([]) == []


def test_a_sample_without_sets_has_none() -> None:
    first, second = decode(encode(full_group()), ExperienceGroup).samples()
    assert first.kept is not None
    assert nested(decode_kept(first.kept, 5)) == [[0, 7], [], [2], [3, 4], [4, 90, 99]]
    assert second.kept is None
