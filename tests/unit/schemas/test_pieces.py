import dataclasses
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import ExperienceGroup, Rollout, Sampling, build_group
from schemas.codec import decode, encode
from schemas.errors import EncodeError
from schemas.experience import MAX_PIECES
from schemas.groups.pieces import join_groups, split_group
from tests.support.fakes.experiences import kept_of
from tests.unit.schemas.record_strategies import OF_GROUP


def rollout(  # noqa: PLR0917 - strategies give them by position
    prompt: int, response: int, metrics: int, runs: int, masked: list[bool], optional: frozenset[str] = frozenset()
) -> Rollout:
    spans = [(0, 3), (response // 2, 4)] if response > 1 else [(0, 3)]
    return Rollout(
        prompt_token_ids=list(range(prompt)),
        response_token_ids=list(range(response)),
        logprobs=[-0.5] * response,
        mask=[*masked, *[True] * response][:response],
        reward=0.5,
        metrics={f"metric-{number}": 0.25 for number in range(metrics)},
        finish_reason="length" if response % 2 else "stop",
        versions=spans,
        run_id=runs,
        turn_starts=list(range(0, response, 50)) if "turns" in optional else None,
        turn_rewards=[float(start) for start in range(0, response, 50)] if "rewards" in optional else None,
        sampling=Sampling(temperature=0.5) if "sampling" in optional else None,
        teacher_logprobs=[-0.25] * response if "teacher" in optional else None,
        kept=kept_of(*([token, 700] for token in range(response))) if "kept" in optional else None,
    )


optional = st.sets(st.sampled_from(["turns", "sampling", "teacher", "kept"])).map(
    lambda names: frozenset(names | ({"rewards"} if {"turns", "teacher"} <= names else set()))
)
rollouts = st.builds(
    rollout,
    st.integers(1, 60),
    st.integers(1, 300),
    st.integers(0, 5),
    st.integers(0, 7),
    st.lists(st.booleans(), max_size=12),
    optional,
)


def routed(runs: list[Rollout], layers: int) -> list[Rollout]:
    """Routes of all, which many bytes of a group with so many layers are."""
    if not layers:
        return runs
    lengths = [len(one.prompt_token_ids) + len(one.response_token_ids) for one in runs]
    return [
        dataclasses.replace(one, routes=np.arange(n * layers * 2, dtype=np.uint8).reshape(n, layers, 2))
        for one, n in zip(runs, lengths, strict=True)
    ]


groups = st.builds(
    lambda runs, bare, layers: msgspec.structs.replace(
        build_group(routed(runs, layers), version=3, **OF_GROUP),
        **({"metrics": [], "finish_reasons": []} if bare else {}),
    ),
    st.lists(rollouts, min_size=1, max_size=12),
    st.booleans(),
    st.sampled_from([0, 0, 1, 4]),
)


def assert_same(found: ExperienceGroup, expected: ExperienceGroup) -> None:
    for name in ExperienceGroup.__struct_fields__:
        np.testing.assert_equal(getattr(found, name), getattr(expected, name), name)


@given(groups, st.integers(12_000, 24_000))  # Room for the largest sample that is drawn, with routes of all its tokens.
def test_a_group_is_split_into_what_fits_and_joined_again(group: ExperienceGroup, limit: int) -> None:
    pieces = split_group(group, limit)
    packed = [encode(piece) for piece in pieces]
    assert max(map(len, packed)) <= limit
    assert all((piece.task_id, piece.attempt) == (group.task_id, group.attempt) for piece in pieces)
    assert_same(join_groups([decode(piece, ExperienceGroup) for piece in packed]), group)
    for first, second in pairwise(packed):
        # Not more than need be: two neighbours are no piece, but for the bytes that are rounded up.
        assert len(first) + len(second) > limit - 2560


@given(st.lists(rollouts, min_size=1, max_size=12), st.integers(1100, 5000))
def test_only_a_sample_that_is_too_large_alone_is_refused(runs: list[Rollout], limit: int) -> None:
    group = build_group(runs, version=3, **OF_GROUP)
    try:
        pieces = split_group(group, limit)
    except EncodeError:
        assert max(len(encode(build_group([run], version=3, **OF_GROUP))) for run in runs) > limit - 2560
        return
    assert max(len(encode(piece)) for piece in pieces) <= limit
    assert_same(join_groups(pieces), group)


def test_what_no_split_helps_is_a_plain_error() -> None:
    group = build_group([rollout(1, 10, 0, 0, []), rollout(1, 2000, 0, 5, [])], **OF_GROUP)
    with pytest.raises(EncodeError, match=r"^run 5: a sample of 16,\d+ bytes, and \d,\d+ is the most .*max_record_mib"):
        split_group(group, 10_000)
    many = build_group([rollout(1, 200, 0, run, []) for run in range(MAX_PIECES + 1)], **OF_GROUP)
    with pytest.raises(EncodeError, match=rf"^a group in {MAX_PIECES + 1} pieces, and a result names {MAX_PIECES} at"):
        split_group(many, 3500)


def test_the_largest_group_has_no_more_pieces_than_a_result_may_name_with_the_smallest_records() -> None:
    """Neighbours are larger than a record together, so it is the number of records twice at most."""
    smallest, framing = (5 << 20) - (64 << 10), 8 << 10
    assert 2 * -(-ExperienceGroup.MAX_BYTES // (smallest - framing)) <= MAX_PIECES
