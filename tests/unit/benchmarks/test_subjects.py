"""What a benchmark is told to measure, and what it says of it: the toy, and SmolLM2 where its folder is."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import _options, peers
from benchmarks._demos import Used, Watch
from benchmarks._options import REAL, TOY, parser, subjects_of
from benchmarks._peers.trl_demo import number
from benchmarks._report import Row, report
from benchmarks._workload import SMOLLM2
from benchmarks.demo import learned, of_all, seeds_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model would be."""
    place = tmp_path / "models" / "SmolLM2"
    monkeypatch.setattr(_options, "pretrained_folder", lambda _: place)
    return place


def asked(*words: str) -> dict[str, Path | None]:
    return subjects_of(parser("", subjects=True).parse_args(words))


def test_smollm2_is_measured_beside_the_toy_where_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked() == {TOY: None}
    assert f"left out: it is not in {folder}" in capsys.readouterr().out
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    assert asked() == {TOY: None, REAL: folder}
    assert asked("--short") == {TOY: None}, "a short run is of the toy, unless it is told otherwise"
    assert asked("--short", "--subjects", REAL) == {REAL: folder}
    assert capsys.readouterr().out == ""


def test_each_subject_has_a_file_of_its_own(tmp_path: Path) -> None:
    options = Namespace(short=True, results=tmp_path)
    for subject in (TOY, REAL):
        report("some", "title", [Row(subject, 1.0, "s")], options, subject=subject)
    found = {path.name: json.loads(path.read_text())["rows"][0]["metric"] for path in tmp_path.iterdir()}
    assert found == {"some.json": TOY, "some_smollm2.json": REAL}


def test_samples_of_a_group_share_their_prompt_and_are_others_with_another_seed() -> None:
    from benchmarks import training  # which imports Megatron

    groups = training.make_groups(SMOLLM2)
    assert [len(group) for group in groups] == [SMOLLM2.group_size] * SMOLLM2.groups
    first = groups[0]
    starts = [sum(first.lengths[:i]) for i in range(len(first))]
    assert len({tuple(first.tokens[start : start + SMOLLM2.prompt]) for start in starts}) == 1
    assert all(SMOLLM2.lengths[0] <= length <= SMOLLM2.lengths[1] for group in groups for length in group.lengths)
    assert groups[0].tokens.tolist() == training.make_groups(SMOLLM2)[0].tokens.tolist()
    assert groups[0].tokens.tolist() != training.make_groups(SMOLLM2, 1)[0].tokens.tolist()


def ran(name: str, *, exact: float = 0.5) -> peers.Ran:
    """A run of three steps, 10 s apart, in which two services use 1.5 and 0.5 of a core."""
    watch = Watch(psutil.Process(), name, memory=False)
    watch.began, watch.peak_bytes = 1000.0, 3 << 30
    for service, cores in ((name, 1.5), ("Kafka", 0.5)):
        watch.services[service] = Used(0.0, [(float(at), cores * at) for at in range(60)])
    steps: list[dict[str, Any]] = [
        {"rewarded_at": 1020.0 + 10 * i, "reward": 0.1 * i, "train_s": 4.0 + i} for i in range(3)
    ]
    return peers.Ran(name, watch, steps, exact)


def test_a_step_is_from_rewards_to_rewards() -> None:
    found = {row.metric: row.value for row in ran("mesh").rows(None)}
    assert found["mesh: command to first reward"] == 20.0
    assert found["mesh: a step"] == 10.0
    assert found["mesh: a step, of the processor"] == pytest.approx(20.0)
    assert found["mesh: the training in it"] == 5.0
    assert found["mesh: peak memory"] == 3072.0
    assert {row.metric: row.value for row in ran("TRL").rows(0.2)}["TRL: steps to reward 0.2"] == 3
    with pytest.raises(SystemExit, match=r"has not reached a reward of 0\.9 in 3 steps"):
        ran("TRL").rows(0.9)


def test_of_seeds_what_was_learned_is_the_mean_and_all_else_the_median() -> None:
    seeds = [[Row(peers.LEARNED, value, "", 0.0), Row("a step", value, "s")] for value in (0.3, -0.1, 0.1)]
    once = Row("measured once", 7.0, "")
    assert peers.over_seeds([[*seeds[0], once], *seeds[1:]]) == [
        Row(peers.LEARNED, pytest.approx(0.1), "", 0.0),  # type: ignore[arg-type]
        Row("a step", 0.1, "s"),
        once,
    ]


@pytest.mark.parametrize(
    ("text", "value"), [("33", 1.0), ("10 + 23 = 33.", 1.0), ("330", 0.0), ("33 or 34", 0.0), ("", 0.0)]
)
def test_trl_rewards_the_last_number(text: str, value: float) -> None:
    assert number(text, "33") == value


def summary(seed: int, exact: float, steps: int) -> dict[str, Any]:
    step = {"rollout_s": 1.0, "train_s": 0.5, "sync_s": 0.1}
    return {
        "subject": "copy", "seed": seed, "steps": [step] * steps, "stages": {"train": 1.0}, "reward_before": 0.0,
        "reward_after": exact, "exact_after": exact, "train_seconds": 2.0 * steps, "time_to_first_reward_s": 5.0,
        "total_seconds": 10.0 * seed,
    }  # fmt: skip


def test_the_table_has_medians_and_says_how_many_of_the_named_seeds_have_learned() -> None:
    assert seeds_of("0,2,5-7") == [0, 2, 5, 6, 7]
    runs = [summary(1, 1.0, 20), summary(2, 0.5, 60), summary(3, 0.99, 30)]
    values = {row.metric: row.value for row in of_all(runs)}
    assert values["steps"] == 30
    assert values["everything"] == 20.0
    assert values["held-out prompts answered exactly, median"] == 0.99
    assert values["held-out prompts answered exactly, worst"] == 0.5
    assert values["seeds at 0.99 or more"] == 2
    assert learned(runs[1]) == {"seed": 2, "exact": 0.5, "steps": 60, "seconds": 20.0}
