import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.coordination.batches.dispatch_queue import sort_batch_id
from trinity_bus.rollout.metrics import (
    Folded,
    aggregate_eval_metrics,
    aggregate_metrics,
    aggregate_run_level_metrics,
    bootstrap_metric,
    calculate_task_level_metrics,
    split_suffix,
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("reward", ("reward", "mean")), ("tokens:sum", ("tokens", "sum")), ("a:b:max", ("a:b", "max")),
        ("a:min", ("a", "min")), ("a:last", ("a", "last")), ("a:mean", ("a", "mean")),
        ("judge:gpt", ("judge:gpt", "mean")), ("sum", ("sum", "mean")),
    ],
)  # fmt: skip
def test_suffixes(key: str, expected: tuple[str, str]) -> None:
    assert split_suffix(key) == expected


TASKS: list[dict[str, Any]] = [
    {"reward": 1.0, "tokens:sum": 10, "longest:max": 3, "shortest:min": 3, "lr:last": 0.1, "judge:gpt": 1},
    {"reward": 0.0, "tokens:sum": 5, "longest:max": 7, "shortest:min": 2, "lr:last": 0.2, "text": "no number"},
    {"reward": 0.5, "ok": True},
]


STATS = ("mean", "max", "min")


def test_train_batches() -> None:
    three = {"reward": (0.5, 1.0, 0.0), "judge:gpt": (1.0,) * 3, "ok": (1.0,) * 3}
    ones = {"tokens/sum": 15.0, "longest/max": 7.0, "shortest/min": 2.0, "lr/last": 0.2}
    assert aggregate_metrics(TASKS, "rollout") == {
        **{f"rollout/{name}/{stat}": v for name, of in three.items() for stat, v in zip(STATS, of, strict=True)},
        **{f"rollout/{name}": value for name, value in ones.items()},
    }
    assert aggregate_metrics([], "rollout") == {}
    assert aggregate_metrics([{"a:sum": 1}], "") == {"a/sum": 1.0}


def test_eval_batches() -> None:
    tasks = [{"acc/mean@4": 1.0, "n:sum": 1}, {"acc/mean@4": 0.0, "n:sum": 2}]
    assert aggregate_eval_metrics(tasks, "eval/held") == {"eval/held/acc/mean@4": 0.5, "eval/held/n/sum": 3.0}
    assert aggregate_eval_metrics(tasks, "eval/held", detailed_stats=True) == {
        "eval/held/acc/mean@4/mean": 0.5,
        "eval/held/acc/mean@4/max": 1.0,
        "eval/held/acc/mean@4/min": 0.0,
        "eval/held/acc/mean@4/std": 0.5,
        "eval/held/n/sum": 3.0,
    }


def test_runs_keep_their_suffix_so_that_they_can_be_reduced_again() -> None:
    assert aggregate_run_level_metrics(TASKS) == {
        "reward": 0.5,
        "tokens:sum": 15.0,
        "longest:max": 7.0,
        "shortest:min": 2.0,
        "lr:last": 0.2,
        "judge:gpt": 1.0,
        "ok": 1.0,
    }
    assert calculate_task_level_metrics(TASKS, False) == aggregate_run_level_metrics(TASKS)
    assert calculate_task_level_metrics([], False) == {}


def test_an_eval_task() -> None:
    runs = [{"acc": value, "n:sum": 1, "time/task_execution": 2.0 * value} for value in (0.0, 1.0, 1.0, 0.0, 1.0)]
    metrics = calculate_task_level_metrics(runs, True)
    assert set(metrics) == {
        "acc/mean@5",
        "acc/std@5",
        *(f"acc/{which}@{k}" for which in ("best", "worst") for k in (2, 4, 5)),
        "n:sum",
        "time/task_execution",
    }
    assert metrics["acc/mean@5"] == 0.6
    assert metrics["acc/std@5"] == float(np.std([0, 1, 1, 0, 1]))
    assert metrics["n:sum"] == 5.0
    assert metrics["time/task_execution"] == 1.2
    # The best of two draws fails only if both do.
    assert math.isclose(metrics["acc/best@2"], 1 - 0.4**2, abs_tol=0.03)
    assert math.isclose(metrics["acc/worst@2"], 0.6**2, abs_tol=0.03)
    assert calculate_task_level_metrics([], True) == {}
    assert calculate_task_level_metrics([{"acc": 1}], True) == {"acc/mean@1": 1.0, "acc/std@1": 0.0}


def reference_bootstrap(data: list[float], subset_size: int, seed: int) -> list[tuple[float, float]]:
    """The definition, draw by draw, with NumPy's global generator."""
    state = np.random.get_state()  # noqa: NPY002 - restored below
    try:
        np.random.seed(seed)  # noqa: NPY002 - the definition
        draws = [np.random.choice(len(data), size=subset_size, replace=True) for _ in range(1000)]  # noqa: NPY002 - likewise
    finally:
        np.random.set_state(state)  # noqa: NPY002 - likewise
    subsets = [[data[i] for i in draw] for draw in draws]
    results = []
    for reduce_fn in (np.max, np.min, np.mean, np.median):
        reduced = [reduce_fn(subset) for subset in subsets]
        results.append((float(np.mean(reduced)), float(np.std(reduced))))
    return results


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("subset_size", [1, 2, 5, 13])
@pytest.mark.parametrize("seed", [42, 7])
def test_bootstrap_to_the_number(size: int, subset_size: int, seed: int) -> None:
    data = np.random.default_rng(size).normal(size=size).tolist()
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002 - what is tested
    found = bootstrap_metric(data, subset_size, [np.max, np.min, np.mean, np.median], seed=seed)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]  # noqa: NPY002 - what is tested
    assert found == reference_bootstrap(data, subset_size, seed)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_means_are_those_of_numpy_to_the_last_bit(values: list[float]) -> None:
    assert aggregate_run_level_metrics([{"a": value} for value in values]) == {"a": float(np.mean(values))}


def test_order_of_batches() -> None:
    ids: list[int | str] = ["b", 3, "10/x", 2, "2/held-out", 10, "3x", "a"]
    assert sorted(ids, key=sort_batch_id) == [2, "2/held-out", 3, "3x", 10, "10/x", "b", "a"]
    assert sort_batch_id(5) == (5, 0)
    assert sort_batch_id("5") == (5, 1)
    assert sort_batch_id("x5") == (math.inf, 1)
    assert sort_batch_id("٣") == (math.inf, 1)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.sampled_from(["a", "a:sum", "a:max", "a:min", "a:last"])
)
def test_steps_that_come_one_after_the_other_come_to_the_same(values: list[float], key: str) -> None:
    folded = Folded(key)
    for value in values:
        folded.add(value)
    assert folded.result == pytest.approx(aggregate_run_level_metrics([{key: value} for value in values])[key])
