"""A batch is divided into updates, and each update is dealt to the ranks: nothing is lost, and none has much more."""

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas import ExperienceGroup
from tests.support.fakes.examples import demonstrations, preferences
from tests.support.fakes.experiences import make_group
from trinity_bus.config import TrainerSettings
from trinity_bus.training.objectives.advantages import GRPO
from trinity_bus.training.ranks import rank_protocol
from trinity_bus.training.steps import packing
from trinity_bus.training.steps.packing import TrainSample, computed_tokens, micro_batches, pack
from trinity_bus.training.steps.samples import TrainBatch, prepare
from trinity_bus.training.steps.step_plan import StepPlan, balanced, mixed, plan_examples, plan_step

sizes_of_items = st.lists(st.integers(1, 4000), max_size=60)


def batch_of(groups: list[ExperienceGroup]) -> TrainBatch:
    return prepare(groups, version=0, advantage=GRPO(TrainerSettings()))


def plan(seed: int, groups: int, **settings: object) -> StepPlan:
    made = [make_group(seed=100 * seed + i) for i in range(groups)]
    return plan_step(batch_of(made), TrainerSettings(**settings), step=seed)


@given(sizes_of_items, st.integers(1, 9))
def test_each_item_is_dealt_once_and_no_rank_has_much_more_than_another(sizes: list[int], ranks: int) -> None:
    dealt = balanced(sizes, ranks)
    assert len(dealt) == ranks
    assert sorted(i for indices in dealt for i in indices) == list(range(len(sizes)))
    assert dealt == balanced(sizes, ranks)
    sums = [sum(sizes[i] for i in indices) for indices in dealt]
    assert max(sums) - min(sums) <= max(sizes, default=0)
    # The last item of the fullest rank went to the one with the least then: no more than the mean of the others.
    assert max(sums) <= sum(sizes) / ranks + (1 - 1 / ranks) * max(sizes, default=0) + 1e-9


@given(st.integers(0, 20), st.integers(1, 5), st.integers(1, 6), st.integers(1, 5), st.booleans())
def test_shards_make_the_step(seed: int, groups: int, updates: int, ranks: int, share: bool) -> None:
    whole = plan(seed, groups, mini_batches=updates)
    shards = [whole.shard(rank, ranks, share=share) for rank in range(ranks)]
    for number, update in enumerate(whole.updates):
        parts = [shard.updates[number] for shard in shards]
        assert all(part.samples for part in parts)
        assert {(part.divisor, part.weight) for part in parts} == {(update.divisor, update.weight)}
        weighing = [s for part in parts for s in part.samples if s.mask.any()]
        assert sorted(map(id, weighing)) == sorted(map(id, update.samples))
    assert sum(update.weight for update in whole.updates) == whole.trained_tokens


@given(st.integers(0, 20), st.integers(1, 40), st.integers(2, 5))
def test_whole_groups_are_dealt_where_no_rank_then_computes_more(seed: int, groups: int, ranks: int) -> None:
    whole = plan(seed, groups)

    def most(*, share: bool) -> int:
        shards = [whole.shard(rank, ranks, share=share).updates[0].samples for rank in range(ranks)]
        return max(computed_tokens(shard, share=True) for shard in shards)

    assert most(share=True) <= most(share=False)


def test_the_prompt_of_a_group_is_computed_on_one_rank() -> None:
    whole = plan(0, 32)
    shards = [whole.shard(rank, 2, share=True).updates[0].samples for rank in range(2)]
    ours, theirs = ({sample.prompt_key for sample in shard} for shard in shards)
    assert ours.isdisjoint(theirs)


@given(st.integers(0, 20), st.integers(1, 5), st.integers(1, 40))
def test_every_sample_is_in_one_update_and_the_seed_says_in_which(seed: int, groups: int, updates: int) -> None:
    batch = batch_of([make_group(seed=100 * seed + i) for i in range(groups)])
    settings = TrainerSettings(mini_batches=updates)
    one, again = (plan_step(batch, settings, step=seed) for _ in range(2))
    ids = [[id(sample) for sample in update.samples] for update in one.updates]
    assert ids == [[id(sample) for sample in update.samples] for update in again.updates]
    assert sorted(i for update in ids for i in update) == sorted(map(id, batch.samples))
    assert len(ids) == min(updates, len(batch.samples))
    # Equal parts of the whole batch, whichever of its samples they hold.
    np.testing.assert_allclose([u.divisor for u in one.updates], batch.response_tokens / len(ids))


@given(st.integers(0, 20), st.integers(2, 6), st.integers(1, 6))
def test_samples_of_a_prompt_stay_next_to_each_other(seed: int, groups: int, updates: int) -> None:
    batch = batch_of([make_group(seed=100 * seed + i) for i in range(groups)])
    planned = plan_step(batch, TrainerSettings(mini_batches=updates), step=seed).updates

    def runs(samples: Iterable[TrainSample]) -> int:
        return sum(1 for _ in itertools.groupby(samples, lambda s: s.tokens[: s.prompt_length].tobytes()))

    assert runs(sample for update in planned for sample in update.samples) <= runs(batch.samples)


def test_what_a_token_weighs_by_hand() -> None:
    """Two groups, of which one teaches nothing, in two updates."""
    groups = [make_group(seed=0, rewards=[0.0, 1.0, 1.0]), make_group(seed=1, rewards=[1.0, 1.0])]
    batch = batch_of(groups)
    response_tokens = sum(int(group.mask.sum()) for group in groups)
    for normalizer, weight in {
        "batch": lambda _: 2 / response_tokens,
        "sequence": lambda sample: 2 / (5 * int(sample.mask.sum())),
        "constant": lambda _: 2 / (5 * 100),
    }.items():
        settings = TrainerSettings(mini_batches=2, loss_normalizer=normalizer, max_tokens=100)
        for update in plan_step(batch, settings, step=0).updates:
            packed = pack(update.samples, token_weight=1 / update.divisor)
            expected = [s.mask * weight(s) for s in update.samples]
            found = packing.unpack(packed.weight, packed, update.samples)
            np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=1e-6)
            assert packed.weight.sum() == pytest.approx(update.weight / update.divisor, rel=1e-5)
    alone = plan_step(batch, TrainerSettings(loss_normalizer="update"), step=0).updates
    assert [update.divisor for update in alone] == [sum(s.trained_tokens for s in batch.samples)]


def test_a_shard_survives_the_wire() -> None:
    whole = plan(3, 2, mini_batches=2)
    samples = [s for update in whole.updates for s in update.samples]
    call, frames = rank_protocol.train_call(whole)
    bodies = iter(frames)
    back = rank_protocol.step_of(call, lambda: rank_protocol.decode_sample(next(bodies)))
    assert [(u.divisor, u.weight) for u in back.updates] == [(u.divisor, u.weight) for u in whole.updates]
    for ours, theirs in zip([s for u in back.updates for s in u.samples], samples, strict=True):
        assert_equal(ours, theirs)
    routes = np.arange(2 * len(samples[0].tokens), dtype=np.uint8).reshape(-1, 2)
    kept = np.frombuffer(bytes(len(samples[0].mask)), np.uint8)
    beside = {"ref_logprobs": samples[0].old_logprobs + 1, "routes": routes, "kept": kept}
    with_reference = replace(samples[0], scale=0.25, **beside)
    assert_equal(rank_protocol.decode_sample(rank_protocol.encode_sample(with_reference)), with_reference)


def assert_equal(left: TrainSample, right: TrainSample) -> None:
    compare: Callable[[object, object], None] = np.testing.assert_array_equal
    for name in ("tokens", "mask", "advantages", "rollout_logprobs", "old_logprobs", "ref_logprobs", "routes", "kept"):
        ours, theirs = getattr(left, name), getattr(right, name)
        compare(ours, theirs)
        assert theirs is None or ours.dtype == theirs.dtype
    assert (left.prompt_length, left.scale) == (right.prompt_length, right.scale)


def test_a_preference_is_never_parted_and_every_example_is_dealt_once() -> None:
    samples = preferences(7, weights=[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 2.0])
    plan = plan_examples(samples, TrainerSettings(mini_batches=2))
    assert [{s.pair for s in update.samples} for update in plan.updates] == [{0, 1, 2}, {4, 5, 6}]
    assert [update.divisor for update in plan.updates] == pytest.approx([3.0, 4.0])
    shards = [plan.shard(rank, 2) for rank in range(2)]
    for update, *parts in zip(plan.updates, *(shard.updates for shard in shards), strict=True):
        pairs = [{s.pair for s in part.samples} for part in parts]
        assert pairs[0].isdisjoint(pairs[1])
        assert sorted(len(p) for p in pairs) == [1, 2]
        assert sum(len(part.samples) for part in parts) == len(update.samples)
    for indices in micro_batches(samples, 1):
        assert len({samples[i].pair for i in indices}) == 1
        assert len(indices) == 2


def test_demonstrations_weigh_their_part_of_each_update() -> None:
    batch = prepare([make_group(seed=i) for i in range(3)], version=0, advantage=GRPO(TrainerSettings()))
    settings = TrainerSettings(mini_batches=2, mix_coef=0.25)
    plan = plan_step(batch, settings, step=0)
    both = mixed(plan, demonstrations(3, weights=[1.0, 3.0, 1.0]), settings)
    for update, before in zip(both.updates, plan.updates, strict=True):
        assert update.divisor == before.divisor
        of = {drawn: [s for s in update.samples if s.drawn is drawn] for drawn in (True, False)}
        weights = {drawn: sum(s.scale * s.trained_tokens for s in found) for drawn, found in of.items()}
        assert weights[True] == pytest.approx(0.75 * before.weight)
        assert weights[False] == pytest.approx(0.25 * before.divisor)
        assert update.weight == pytest.approx(weights[True] + weights[False])
    assert mixed(plan, [], settings) == plan
