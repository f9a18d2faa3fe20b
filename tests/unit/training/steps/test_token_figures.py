"""Figures by token are those that plain transformers compute, of groups that a step chooses the same each time."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from schemas import ExperienceGroup
from schemas.token_figures import FLOAT16
from tests.support.fakes.experiences import make_group
from tests.support.training.samples import train_sample
from trinity_bus.config import TrainerSettings
from trinity_bus.training.engines.rank_engine import RankEngine
from trinity_bus.training.steps import packing
from trinity_bus.training.steps.packing import TrainSample
from trinity_bus.training.steps.token_figures import SAMPLED_GROUPS, FigureKeeper, SampleFigures, marked

type MakeEngine = Callable[..., RankEngine]

ALL: dict[str, Any] = {"token_figures": "all"}
NONE: dict[str, Any] = {"token_figures": "none"}


def columns(one: SampleFigures) -> tuple[list[float], list[float]]:
    gaps, entropies = (
        np.frombuffer(column, FLOAT16).astype(np.float64).tolist() for column in (one.gaps, one.entropies)
    )
    return gaps, entropies


def expected(folder: Path, groups: Sequence[ExperienceGroup]) -> dict[int, tuple[list[float], list[float]]]:
    """Sample by sample, in plain transformers: by the sample's place among all."""
    from transformers import Qwen3ForCausalLM

    network = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = {}
    for number, sample in enumerate(sample for group in groups for sample in group.samples()):
        with torch.no_grad():
            logits = network(torch.from_numpy(sample.tokens.astype(np.int64))[None]).logits[0, :-1]
        logp = logits.log_softmax(-1)[sample.prompt_length - 1 :].double()
        targets = torch.from_numpy(sample.tokens[sample.prompt_length :].astype(np.int64))
        drawn = logp.gather(1, targets[:, None])[:, 0].numpy()
        gaps = np.where(sample.mask, drawn - sample.logprobs, 0.0)
        found[number] = (gaps.tolist(), (-(logp.exp() * logp).sum(1)).tolist())
    return found


def test_they_are_what_plain_transformers_compute(engine: MakeEngine, model_folder: Path) -> None:
    groups = [make_group(seed=0), make_group(seed=1, rewards=[1.0, 1.0, 1.0]), make_group(seed=2)]
    made = engine(**ALL)
    made.train_step(groups)
    kept = {one.number: one for one in made.take_figures()}
    wanted = expected(model_folder, groups)
    useless = range(len(groups[0]), len(groups[0]) + len(groups[1]))
    assert sorted(kept) == [number for number in sorted(wanted) if number not in useless]
    for number, one in kept.items():
        assert one.updates_before == 0
        for ours, theirs in zip(columns(one), wanted[number], strict=True):
            # float16 has 11 bits.
            assert ours == pytest.approx(theirs, rel=1e-3, abs=2e-5), number
    assert made.take_figures() == [], "they are given once"


def test_each_sample_says_how_many_updates_came_before(engine: MakeEngine) -> None:
    made = engine(**ALL, mini_batches=3)
    made.train_step([make_group(seed=0), make_group(seed=2)])
    told = [one.updates_before for one in made.take_figures()]
    assert sorted(set(told)) == [0, 1, 2]
    assert len(told) == 2 * len(make_group())


def test_a_step_that_keeps_none_has_those_of_no_step_before(engine: MakeEngine) -> None:
    made = engine(**ALL)
    made.train_step([make_group(seed=0)])
    made.train_step([make_group(seed=1, rewards=[1.0, 1.0, 1.0])])
    assert made.take_figures() == []
    quiet = engine(**NONE)
    quiet.train_step([make_group(seed=0)])
    assert quiet.take_figures() == []


def numbered(*numbers: int) -> list[TrainSample]:
    return [train_sample(range(3), 1, mask=np.array([True, False]), number=number) for number in numbers]


def test_a_step_chooses_the_same_whole_groups_each_time_and_others_another_time() -> None:
    settings = TrainerSettings(seed=3)
    sizes = [1 + group % 3 for group in range(40)]
    bounds = list(pairwise(accumulate(sizes, initial=0)))
    # Every second group teaches something, and a sample of it is masked.
    samples = numbered(*(n for first, end in bounds[::2] for n in range(first, max(first + 1, end - 1))))

    def groups(step: int, **changes: Any) -> set[int]:
        made = marked(samples, sizes, settings.model_copy(update=changes), step)
        kept = {one.number for one in made}
        chosen = {at for at, (first, end) in enumerate(bounds) if kept & set(range(first, end))}
        wanted = {n.number for n in samples if any(bounds[at][0] <= (n.number or 0) < bounds[at][1] for at in chosen)}
        assert kept - {None} == wanted, "a group is told of whole"
        return chosen

    assert groups(7) == groups(7)
    assert len(groups(7)) == SAMPLED_GROUPS
    assert groups(7) <= set(range(0, 40, 2)), "none is chosen that teaches nothing"
    assert groups(7) != groups(8)
    assert groups(7) != groups(7, seed=4)
    assert groups(7, **NONE) == set()
    assert groups(7, **ALL) == set(range(0, 40, 2))


def kept(keeper: FigureKeeper, samples: Sequence[TrainSample], gaps: list[float], entropies: list[float]) -> None:
    arrays = packing.pack(samples, token_weight=1.0)
    laid = [
        torch.tensor(packing.lay([np.array(v, np.float32)] * len(samples), arrays, samples)) for v in (gaps, entropies)
    ]
    keeper.keep(samples, arrays, *laid)


def test_what_is_not_finite_is_left_out_and_the_first_of_a_sample_counts() -> None:
    keeper, samples = FigureKeeper(is_keeping=True), numbered(0, 1, 2)
    kept(keeper, samples[:1], [0.5, 0.25], [1.0, -1e-9])
    kept(keeper, samples[:1], [9.0, 9.0], [9.0, 9.0])
    kept(keeper, samples[1:2], [float("nan"), 0.0], [1.0, 1.0])
    kept(keeper, samples[2:], [0.0, 0.0], [float("inf"), 1.0])
    ((number, before, gaps, entropies),) = ((o.number, o.updates_before, *columns(o)) for o in keeper.take())
    assert (number, before, gaps, entropies) == (0, 0, [0.5, 0.0], [1.0, 0.0]), "0 where nothing is trained on"


def test_one_of_the_ranks_that_compute_the_same_keeps_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.training.steps.token_figures.MAX_BYTES", 16)
    for is_keeping, numbers in ((True, [0, 1]), (False, [])):
        keeper = FigureKeeper(is_keeping=is_keeping)
        for one in numbered(0, 1, 2):
            kept(keeper, [one], [0.5, 0.5], [1.0, 1.0])
        assert [one.number for one in keeper.take()] == numbers
