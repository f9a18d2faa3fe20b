"""The demo with many seeds: which ones, their medians, and those that have not learned."""

from typing import Any

from benchmarks.demo import learned, of_all, seeds_of


def summary(seed: int, exact: float, steps: int) -> dict[str, Any]:
    step = {"rollout_s": 1.0, "train_s": 0.5, "sync_s": 0.1}
    return {
        "subject": "copy", "seed": seed, "steps": [step] * steps, "stages": {"train": 1.0}, "reward_before": 0.0,
        "reward_after": exact, "exact_after": exact, "train_seconds": 2.0 * steps, "time_to_first_reward_s": 5.0,
        "total_seconds": 10.0 * seed,
    }  # fmt: skip


def test_seeds_are_named_one_by_one_or_from_one_to_another() -> None:
    assert seeds_of("0,2,5-7") == [0, 2, 5, 6, 7]


def test_the_table_has_medians_and_says_how_many_seeds_have_learned() -> None:
    runs = [summary(1, 1.0, 20), summary(2, 0.5, 60), summary(3, 0.99, 30)]
    values = {row.metric: row.value for row in of_all(runs)}
    assert values["steps"] == 30
    assert values["everything"] == 20.0
    assert values["held-out prompts answered exactly, median"] == 0.99
    assert values["held-out prompts answered exactly, worst"] == 0.5
    assert values["seeds at 0.99 or more"] == 2
    assert learned(runs[1]) == {"seed": 2, "exact": 0.5, "steps": 60, "seconds": 20.0}
