"""What is left out of a step, and that the rest is as if it had never been drawn."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from schemas import ExperienceGroup, Sample
from schemas.groups.kept import decode_kept
from schemas.groups.trainable import Bounds
from tests.support.fakes.experiences import drawn_from_some, kept_of, make_group
from tests.support.narrowing import some
from trinity_bus.config import TrainerSettings
from trinity_bus.telemetry.metrics import TRAIN
from trinity_bus.training.objectives.advantages import GRPO, ReMax
from trinity_bus.training.steps.choice import counts, left_out, retold, without
from trinity_bus.training.steps.samples import overlong_penalty, prepare

BOUNDS = Bounds(vocabulary=32, positions=128)


def _at(array: np.ndarray, index: int, value: float) -> np.ndarray:
    changed = array.copy()
    changed[index] = value
    return changed


def _joined(kept: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(kept), np.uint8)


FLAWS: list[Any] = [
    pytest.param(lambda g: {"tokens": _at(g.tokens, 0, 32)}, "bad_token", "token id 32 is not", id="beyond"),
    pytest.param(lambda g: {"tokens": _at(g.tokens, 0, -1)}, "bad_token", "token id -1 is not", id="negative"),
    *(
        pytest.param(
            lambda g, value=value: {"logprobs": _at(g.logprobs, 0, value)}, "bad_logprob", "no log-probability", id=name
        )
        for name, value in (("nan", np.nan), ("inf", np.inf), ("-inf", -np.inf), ("positive", 0.5))
    ),
    *(
        pytest.param(
            lambda g, value=value: {"rewards": _at(g.rewards, 0, value)}, "bad_reward", "reward", id=f"{value}"
        )
        for value in (np.inf, -np.inf, 3e38)
    ),
    *(
        pytest.param(lambda g, row=row: {"sampling": drawn(g, row)}, reason, "it was drawn", id=str(row))
        for row, reason in (
            ((0.7, 0.9, 0, 0), "limited_sampling"),
            ((0.7, 1, 20, 0), "limited_sampling"),
            ((0.7, 1, 0, 0.1), "limited_sampling"),
            ((0.7, np.nan, np.nan, np.nan), "limited_sampling"),
            ((0, 1, 0, 0), "greedy"),
        )
    ),
]


def drawn(group: ExperienceGroup, first: tuple[float, ...]) -> np.ndarray:
    """How the first sample was drawn; nobody knows it of the others."""
    return np.array([first, *[(np.nan,) * 4] * (len(group) - 1)], np.float32)


def left(*groups: ExperienceGroup, bounds: Bounds = BOUNDS, limited: bool = False, greedy: bool = False) -> Any:
    return left_out(groups, bounds, train_limited=limited, wants_greedy=greedy)


def trained(groups: list[ExperienceGroup]) -> Any:
    batch = prepare(groups, version=0, advantage=GRPO(TrainerSettings()))
    return [(sample.tokens.tolist(), sample.advantages.tolist()) for sample in batch.samples], batch.metrics


@pytest.mark.parametrize(("damage", "reason", "detail"), FLAWS)
def test_what_is_left_out_might_never_have_been_drawn(
    damage: Callable[[ExperienceGroup], dict[str, np.ndarray]], reason: str, detail: str
) -> None:
    good = make_group(task_id="task-7")
    poisoned = replace(good, **damage(good))
    (found,) = left(poisoned)
    assert (found.task_id, found.reason, found.samples) == ("task-7", reason, [0])
    assert detail in found.detail
    samples, metrics = trained(without([poisoned], [found]))
    # A sample without a reward takes no part in the statistics of its group.
    expected, _ = trained([replace(good, rewards=_at(good.rewards, 0, np.nan))])
    assert samples == expected
    assert metrics["samples"] == len(good) - 1
    assert counts([found]) == {"samples_left_out": 1.0, f"samples_left_out/{reason}": 1.0}


def test_limited_samples_are_trained_on_where_the_setting_says_so_but_never_greedy_ones() -> None:
    one = make_group()
    limited = replace(one, sampling=drawn(one, (0.7, 0.9, 0, 0)))
    greedy = replace(one, sampling=drawn(one, (0, 0.9, 0, 0)))
    assert left(limited, limited=True) == []
    assert trained([limited])[1]["samples_limited"] == 1
    assert [found.reason for found in left(greedy, limited=True)] == ["greedy"]


def test_what_was_drawn_from_known_tokens_is_trained_on() -> None:
    whole = drawn_from_some(make_group(), vocabulary=32)
    assert left(whole) == []
    assert trained([whole])[1]["samples_limited"] == len(whole) - 1
    counts = [decode_kept(one.kept, len(one.mask)).counts for one in whole.samples() if one.kept is not None]
    assert [(each > 0).tolist() for each in counts] == [one.mask.tolist() for one in whole.samples()][:-1]
    sets = [[] if one.kept is None else nested_sets(one) for one in whole.samples()]
    # One token of the first sample was drawn from too many.
    few = list(sets[0])
    few[next(place for place, one in enumerate(few) if one)] = []
    kept = [kept_of(*each) for each in (few, *sets[1:])]
    sizes = np.array([*map(len, kept)], np.int32)
    metrics = [trained([of])[1] for of in (whole, replace(whole, kept=_joined(kept), kept_sizes=sizes))]
    assert [one["tokens_without_kept"] for one in metrics] == [0, 1]
    assert metrics[0]["trained_tokens"] - metrics[1]["trained_tokens"] == 1
    assert "tokens_without_kept" in TRAIN
    # Of no token of the second sample it is known, and something else had a say in the first.
    sets[1] = [[] for _ in sets[1]]
    kept = [kept_of(*each) for each in sets]
    lacking = replace(
        whole,
        kept=_joined(kept),
        kept_sizes=np.array([*map(len, kept)], np.int32),
        sampling=np.concatenate([drawn(whole, (1, np.nan, np.nan, np.nan))[:1], some(whole.sampling)[1:]]),
    )
    (found,) = left(lacking)
    assert (found.reason, found.samples) == ("limited_sampling", [0, 1])
    assert "there were too many" in found.detail
    assert left(lacking, limited=True) == []
    damaged = replace(whole, kept=np.concatenate([[255], some(whole.kept)[1:]]).astype(np.uint8))
    assert [(one.reason, one.samples) for one in left(damaged)] == [("bad_kept", [0])]
    # The same of a token that is not trained on: its log-probability would be no number.
    first = next(iter(whole.samples()))
    last = len(first.mask) - 1
    mask = whole.mask.copy()
    mask[last] = False
    odd = kept_of(*nested_sets(first)[:last], [31 - int(first.tokens[-1])])
    sizes = some(whole.kept_sizes).copy()
    rest, sizes[0] = some(whole.kept)[sizes[0] :], len(odd)
    kept_too = np.concatenate([np.frombuffer(odd, np.uint8), rest])
    untrained = replace(whole, mask_bits=np.packbits(mask), kept=kept_too, kept_sizes=sizes)
    assert [one.reason for one in left(untrained)] == ["bad_kept"]


def test_tokens_without_a_known_set_are_masked_and_the_others_of_their_sample_trained_on() -> None:
    whole = drawn_from_some(make_group(rewards=[0.0, 1.0, 0.5, 0.25], seed=2), vocabulary=32)
    sets = [[] if one.kept is None else nested_sets(one) for one in whole.samples()]
    assert len(sets[1]) > 1
    sets[1][0] = []
    kept = [kept_of(*each) for each in sets]
    lacking = replace(
        whole, kept=np.frombuffer(b"".join(kept), np.uint8), kept_sizes=np.array([*map(len, kept)], np.int32)
    )
    assert left(lacking) == []
    advantage = GRPO(TrainerSettings())
    all_known, some_known = (prepare([one], version=0, advantage=advantage).samples for one in (whole, lacking))
    for number, (before, after) in enumerate(zip(all_known, some_known, strict=True)):
        mask = before.mask.copy()
        mask[: number == 1] = False
        assert after.mask.tolist() == mask.tolist()
        # What a sample is worth is that of all its tokens.
        assert after.advantages.tolist() == before.advantages.tolist()
    # The last one's tokens were drawn from all there are.
    assert some_known[3].kept is None
    assert some_known[3].mask.any()


def nested_sets(sample: Sample) -> list[list[int]]:
    found = decode_kept(some(sample.kept), len(sample.mask))
    return [part.tolist() for part in np.split(found.ids, np.cumsum(found.counts))[:-1]]


def test_a_group_of_which_nothing_is_left_is_gone() -> None:
    whole = make_group()
    logprobs = np.zeros(len(whole.tokens), np.float32)
    bare = replace(
        whole,
        prompt_lengths=np.zeros(len(whole), np.int32),
        logprobs=logprobs,
        mask_bits=np.packbits(np.ones(len(logprobs), np.bool_)),
    )
    (found,) = left(bare)
    assert (found.reason, found.samples) == ("no_prompt", [0, 1, 2, 3])
    assert without([bare], [found]) == []
    (long,) = left(whole, bounds=Bounds(32, 2))
    assert (long.reason, long.samples) == ("too_long", [0, 1, 2, 3])


def test_nothing_is_asked_of_logprobs_that_are_not_trained_on() -> None:
    whole = make_group()
    spoiled = replace(whole, logprobs=np.where(whole.mask, whole.logprobs, np.float32(np.nan)))
    assert not whole.mask.all()
    assert left(spoiled) == []
    for sample in prepare([spoiled], version=0, advantage=GRPO(TrainerSettings())).samples:
        assert np.isfinite(sample.rollout_logprobs).all()
        assert np.isfinite(sample.old_logprobs).all()


def test_samples_with_nothing_to_train_on_are_told_of_and_count_with_their_reward() -> None:
    whole = make_group()
    mask = whole.mask.copy()
    mask[: int((whole.lengths - whole.prompt_lengths)[0])] = False
    masked = replace(whole, mask_bits=np.packbits(mask))
    (found,) = left(masked)
    assert (found.reason, found.samples) == ("all_masked", [0])
    assert without([masked], [found]) == [masked]
    others, _ = trained([masked])
    everything, _ = trained([whole])
    assert others == everything[1:]
    empty = replace(
        whole,
        prompt_lengths=whole.lengths,
        logprobs=np.zeros(0, np.float32),
        mask_bits=np.zeros(0, np.uint8),
        versions=np.zeros((0, 3), np.int32),
    )
    assert [one.reason for one in left(empty)] == ["empty"]


def test_greedy_samples_are_kept_for_an_advantage_that_compares_with_them_and_never_trained_on() -> None:
    one = make_group(rewards=[0.25, 1.0, 0.0, 1.0])
    mixed = replace(one, sampling=drawn(one, (0, 1, 0, 0)))
    (found,) = left(mixed, greedy=True)
    assert (found.reason, found.samples) == ("baseline", [0])
    (kept,) = without([mixed], [found])
    assert kept is mixed
    batch = prepare([kept], version=0, advantage=ReMax(TrainerSettings()))
    assert [float(sample.advantages[0]) for sample in batch.samples] == [0.75, -0.25, 0.75]
    # A step that is taken again with another advantage trains on what it would have been given.
    assert trained([kept])[0] == trained(without([mixed], left(mixed)))[0]
    assert trained([kept])[1]["samples"] == len(one) - 1


def test_what_another_trainer_left_out_counts_as_this_ones_advantage_has_it() -> None:
    one = make_group()
    greedy = replace(one, sampling=drawn(one, (0, 1, 0, 0)))
    bad = replace(one, rewards=_at(one.rewards, 0, np.inf))
    for wants in (False, True):
        before = left(greedy, bad, greedy=wants)
        for now in (False, True):
            assert retold(before, wants_greedy=now) == left(greedy, bad, greedy=now)


def test_overlong_responses_lose_of_their_reward() -> None:
    one = make_group(rewards=[1.0, 1.0, 1.0, 0.0])
    lengths = [int(sample.mask.sum()) for sample in one.samples()]
    longest = max(lengths)
    settings = TrainerSettings(max_tokens=longest, overlong_buffer=4, overlong_penalty=0.5, advantage_std="none")
    # Eq. 13 of DAPO, case by case.
    rewards = [
        reward - 0.5 * (0.0 if n <= longest - 4 else (n - (longest - 4)) / 4)
        for reward, n in zip(one.rewards.tolist(), lengths, strict=True)
    ]
    assert len(set(rewards)) > 2
    batch = prepare([one], version=0, advantage=GRPO(settings))
    expected = [reward - sum(rewards) / 4 for reward in rewards]
    assert [float(sample.advantages[0]) for sample in batch.samples] == pytest.approx(expected, abs=1e-6)
    # What is told of rewards is what they were.
    assert batch.metrics["reward_mean"] == 0.75
    assert overlong_penalty(longest + 9, settings) == 0.5
    assert overlong_penalty(longest, TrainerSettings()) == 0.0
