"""How samples are packed, and their recorded routes with them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.fakes.experiences import kept_of, make_group
from tests.support.fakes.tiny_trainer import EXPERTS, EXPERTS_PER_TOKEN, LAYERS, write_model
from tests.support.narrowing import some
from tests.support.training.samples import train_sample
from trinity_bus.config import TrainerSettings
from trinity_bus.training.families import read_shape
from trinity_bus.training.objectives.advantages import GRPO
from trinity_bus.training.steps.packing import (
    TrainSample,
    context_part,
    divided,
    first_fit_decreasing,
    lay,
    micro_batches,
    pack,
    unpack,
)
from trinity_bus.training.steps.samples import prepare, with_routes

lengths_of_samples = st.lists(st.integers(1, 300), min_size=1, max_size=60)


@given(lengths_of_samples, st.integers(1, 400))
def test_bins_hold_each_sample_once_and_stay_within_the_budget(lengths: list[int], budget: int) -> None:
    bins = first_fit_decreasing(lengths, budget)
    assert sorted(i for indices in bins for i in indices) == list(range(len(lengths)))
    for indices in bins:
        assert sum(lengths[i] for i in indices) <= budget or len(indices) == 1


def sample(tokens: list[int], prompt_length: int, *, advantage: float, mask: list[bool]) -> TrainSample:
    logprobs = -np.array(tokens[prompt_length:], np.float32)
    of = {"mask": np.array(mask, np.bool_), "advantages": np.full(len(mask), advantage, np.float32)}
    return train_sample(tokens, prompt_length, **of, rollout_logprobs=logprobs, old_logprobs=logprobs * 2)


def test_layout_by_hand() -> None:
    first = sample([10, 11, 12, 13], 2, advantage=1.5, mask=[True, False])
    second = sample([20, 21], 1, advantage=-2.0, mask=[True])
    arrays = pack([first, second], token_weight=0.5)
    np.testing.assert_array_equal(arrays.tokens, [10, 11, 12, 13, 20, 21])
    np.testing.assert_array_equal(arrays.positions, [0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(arrays.bounds, [0, 4, 6])
    assert arrays.longest == 4
    weighing = arrays.weight > 0
    # Token 12 is predicted at the position of 11, token 21 at that of 20; token 13 is masked.
    np.testing.assert_array_equal(weighing, [False, True, False, False, True, False])
    np.testing.assert_array_equal(arrays.targets[weighing], [12, 21])
    np.testing.assert_array_equal(arrays.weight[weighing], [0.5, 0.5])
    np.testing.assert_array_equal(arrays.advantages[weighing], [1.5, -2.0])
    np.testing.assert_array_equal(arrays.rollout_logprobs[weighing], [-12, -21])
    np.testing.assert_array_equal(arrays.old_logprobs[weighing], [-24, -42])
    assert arrays.ref_logprobs is None
    assert arrays.kept is None


def test_each_position_has_the_tokens_that_its_target_was_drawn_from() -> None:
    first = sample([10, 11, 12, 13], 2, advantage=1.5, mask=[True, True])
    second = sample([20, 21], 1, advantage=-2.0, mask=[True])
    limited = replace(first, kept=np.frombuffer(kept_of([12], [4, 13]), np.uint8))
    arrays = pack([second, limited, second], token_weight=0.5, multiple=4)
    kept = some(arrays.kept)
    assert kept.counts.tolist() == [0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0]
    assert kept.ids.tolist() == [12, 4, 13]
    assert kept.of(np.array([6, 0, 5])).ids.tolist() == [4, 13, 12]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=6), st.sampled_from([1, 4]))
def test_unpack_is_the_inverse_of_pack(sizes: list[tuple[int, int]], multiple: int) -> None:
    samples = [sample(list(range(p + r)), p, advantage=0.0, mask=[True] * r) for p, r in sizes]
    arrays = pack(samples, token_weight=1.0, multiple=multiple)
    assert not (np.diff(arrays.bounds) % multiple).any()
    assert arrays.weight.sum() == sum(r for _, r in sizes)
    values = [np.arange(1, r + 1, dtype=np.float32) for _, r in sizes]
    flat = lay(values, arrays, samples)
    assert ((flat > 0) == (arrays.weight > 0)).all()
    for found, laid, original, own in zip(
        unpack(arrays.rollout_logprobs, arrays, samples), unpack(flat, arrays, samples), samples, values, strict=True
    ):
        np.testing.assert_array_equal(found, original.rollout_logprobs)
        np.testing.assert_array_equal(laid, own)


prompts_and_answers = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=12)


@given(prompts_and_answers, st.sampled_from([1, 4]))
def test_prompts_that_are_alike_are_computed_once(sizes: list[tuple[int, int]], multiple: int) -> None:
    samples = [
        sample([7] * (p + 1) + list(range(100 * i, 100 * i + r)), p + 1, advantage=0.0, mask=[True] * r)
        for i, (p, r) in enumerate(sizes, 1)
    ]
    arrays = pack(samples, token_weight=1.0, multiple=multiple, share=True)
    kinds = {p for p, _ in sizes}
    if arrays.shared is None:
        assert len(kinds) == len(samples)
        return
    computed, places = arrays.shared
    assert len(kinds) < len(samples)
    assert len(computed) % multiple == 0
    if multiple == 1:
        assert len(computed) == sum(r for _, r in sizes) + sum(p + 1 for p in kinds)
    for values in (arrays.tokens, arrays.positions):
        np.testing.assert_array_equal(values[computed][places], values)


@given(prompts_and_answers, st.integers(8, 40))
def test_samples_of_a_prompt_go_together_and_stay_within_the_budget(sizes: list[tuple[int, int]], budget: int) -> None:
    samples = [sample([p] * 4 + [9] * r, 4, advantage=0.0, mask=[True] * r) for p, r in sizes]
    found = micro_batches(samples, budget, share=True)
    assert sorted(i for indices in found for i in indices) == list(range(len(samples)))
    for indices in found:
        arrays = pack([samples[i] for i in indices], token_weight=1.0, share=True)
        computed = len(arrays.tokens) if arrays.shared is None else len(arrays.shared.computed)
        assert computed <= budget or len(indices) == 1
    if sum(r + 4 for _, r in sizes) <= budget // 2:
        assert len(found) == 1


def test_a_group_is_divided_where_more_micro_batches_are_wanted() -> None:
    samples = [sample([7] * 5 + [i], 5, advantage=0.0, mask=[True]) for i in range(8)]
    assert micro_batches(samples, 1000, share=True) == [list(range(8))]
    assert sorted(map(len, micro_batches(samples, 1000, lambda _: 4, share=True))) == [2, 2, 2, 2]


def test_what_teaches_nothing_is_left_out() -> None:
    groups = [make_group(rewards=[1.0, 1.0], seed=1), make_group(rewards=[0.0, np.nan, 1.0], seed=2, version=3)]
    batch = prepare(groups, version=5, advantage=GRPO(TrainerSettings()))
    assert len(batch.samples) == 2
    assert [s.advantages[0] for s in batch.samples] == pytest.approx([-1.0, 1.0], abs=1e-3)
    metrics = batch.metrics
    assert (metrics["groups"], metrics["groups_skipped"]) == (2, 1)
    assert (metrics["samples"], metrics["samples_trained"]) == (5, 2)
    assert metrics["reward_mean"] == pytest.approx(0.75)
    assert (metrics["staleness_min"], metrics["staleness_max"]) == (2, 5)
    assert metrics["trained_tokens"] == sum(int(s.mask.sum()) for s in batch.samples)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 4))
def test_parts_of_a_row_make_the_whole_and_mirror_each_other(sizes: list[int], ranks: int) -> None:
    bounds = np.concatenate([[0], np.cumsum(sizes) * 2 * ranks]).astype(np.int32)
    parts = [context_part(bounds, rank, ranks) for rank in range(ranks)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(bounds[-1]))
    # What a token attends to is what lies before it: all ranks have as much of it.
    assert len({int(part.sum()) for part in parts}) == 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 12))
def test_bins_are_divided_into_as_many_as_there_can_be(sizes: list[int], wanted: int) -> None:
    items = iter(range(sum(sizes)))
    bins = [[next(items) for _ in range(size)] for size in sizes]
    found = divided(bins, wanted)
    assert [item for one in found for item in one] == list(range(sum(sizes)))
    assert len(found) == max(len(sizes), min(wanted, sum(sizes)))
    assert all(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("routes") / "model", family="qwen3_moe")


def routed(chosen: list[list[int]]) -> TrainSample:
    return train_sample(range(len(chosen)), len(chosen) - 1, routes=np.array(chosen, np.uint8))


@given(st.lists(st.permutations(range(EXPERTS)), min_size=LAYERS * 2, max_size=LAYERS * 2), st.integers(1, 4))
def test_padding_goes_where_the_token_before_it_goes(rows: list[list[int]], multiple: int) -> None:
    layers = np.array(rows)[:, :EXPERTS_PER_TOKEN].reshape(2, -1)
    packed = pack([routed(layers.tolist())], token_weight=1.0, multiple=multiple)
    assert packed.routes is not None
    assert len(packed.routes) == len(packed.tokens)
    np.testing.assert_array_equal(packed.routes[:2], layers)
    assert (packed.routes[2:] == packed.routes[1]).all()


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param([[0, 1, 2]] * 2, id="another number"),
        pytest.param([[0, 1, 2, 2]] * 2, id="one twice"),
        pytest.param([[0, 1, 2, EXPERTS]] * 2, id="none such"),
    ],
)
def test_what_cannot_be_used_is_counted(chosen: list[list[int]], folder: Path) -> None:
    shape, good = read_shape(folder), routed([[0, 1, 2, 3]] * 2)
    kept, told = with_routes([routed(chosen), good], shape, replay=True)
    assert told == {"samples_without_routes": 1.0}
    assert kept[0].routes is None
    assert kept[1] is good
    kept, told = with_routes([good], shape, replay=False)
    assert (kept[0].routes, told) == (None, {})
