"""Metrics of the steps of runs, reduced to metrics of runs, of tasks and of batches.

A metric's name may end in ``:sum``, ``:max``, ``:min``, ``:last`` or ``:mean``, split at the last colon: how its values
are reduced. Any other name, one with an unknown suffix too, is averaged. Values that are not numbers are ignored;
booleans count as 0 and 1.

==================  =================================================  ===============================================
reduction of        train                                              eval
==================  =================================================  ===============================================
steps to a run      mean under the same name                           the same
runs to a task      mean under the same name                           ``name/mean@n``, ``name/std@n``, and
                                                                       ``name/best@k``, ``name/worst@k`` for
                                                                       k = 2, 4, 8 ... below n, and n
tasks to a batch    ``prefix/name/mean``, ``/max``, ``/min``           ``prefix/name``; with ``detailed_stats``
                                                                       ``/mean``, ``/max``, ``/min``, ``/std``
a suffix, to run,   ``name:suffix``                                    ``name:suffix``
to task
a suffix, to batch  ``prefix/name/suffix``                             ``prefix/name/suffix``
==================  =================================================  ===============================================
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from schemas.record import Metrics

type Aggregation = Literal["mean", "sum", "max", "min", "last"]
type Stat = Literal["mean", "max", "min", "std"]
type Values = NDArray[np.float64]
type Reduction = Callable[[Values], float]

_SUFFIXES: dict[str, Aggregation] = {"sum": "sum", "max": "max", "min": "min", "last": "last", "mean": "mean"}
TASK_TIME = "time/task_execution"
RUN_TIME = "time/run_execution"
# Evaluation reports the plain mean of these: how the best of k runs did is no question of interest for a duration
_TIMES = (TASK_TIME, RUN_TIME)


def _mean(values: Values) -> float:
    # What np.mean computes, at a quarter of its price for few values.
    return float(np.add.reduce(values) / len(values))


_REDUCTIONS: dict[Aggregation | Stat, Reduction] = {
    "mean": _mean,
    "sum": lambda values: float(np.add.reduce(values)),
    "max": lambda values: float(values.max()),
    "min": lambda values: float(values.min()),
    "last": lambda values: float(values[-1]),
    "std": lambda values: float(np.std(values)),
}


# Metrics may be infinite, or NaN; what is made of them then is too, and no reason for a warning
_QUIET = np.errstate(over="ignore", invalid="ignore")


def split_suffix(key: str) -> tuple[str, Aggregation]:
    """Return the name and the aggregation of a metric's key."""
    name, colon, suffix = key.rpartition(":")
    aggregation = _SUFFIXES.get(suffix) if colon else None
    return (key, "mean") if aggregation is None else (name, aggregation)


def aggregate_metrics(metrics: Iterable[Mapping[str, Any]], prefix: str) -> Metrics:
    """Return ``{prefix}/{name}/{stat}`` of a train batch's tasks, one map of each; an empty prefix has no slash."""
    return _aggregate(metrics, prefix, ("mean", "max", "min"), plain=False)


def aggregate_eval_metrics(
    metrics: Iterable[Mapping[str, Any]], prefix: str, *, detailed_stats: bool = False
) -> Metrics:
    """Reduce those of an eval batch's tasks; without ``detailed_stats`` a mean is called ``{prefix}/{name}``."""
    stats: Sequence[Stat] = ("mean", "max", "min", "std") if detailed_stats else ("mean",)
    return _aggregate(metrics, prefix, stats, plain=not detailed_stats)


def aggregate_run_level_metrics(metrics: Iterable[Mapping[str, Any]]) -> Metrics:
    """Reduce those of a run's steps, or a task's runs; names keep their suffix, to be reduced again."""
    # Of one value, each of these reductions is the value itself: most tasks have one run, most runs one step.
    return {key: values[0] if len(values) == 1 else _reduced(key, values) for key, values in _numbers(metrics).items()}


class Folded:
    """One metric of a run whose steps come one after the other: the same reduction, of which no value is kept."""

    __slots__ = ("_aggregation", "_count", "_value")

    def __init__(self, key: str) -> None:
        self._aggregation = split_suffix(key)[1]
        self._count = 0
        self._value = 0.0

    def add(self, value: float) -> None:
        self._count += 1
        if self._count == 1 or self._aggregation == "last":
            self._value = value
        elif self._aggregation in ("mean", "sum"):
            self._value += value
        else:
            self._value = _reduced(f":{self._aggregation}", [self._value, value])

    @property
    def result(self) -> float:
        return self._value / self._count if self._aggregation == "mean" else self._value


def _reduced(key: str, values: list[float]) -> float:
    aggregation = split_suffix(key)[1]
    if aggregation == "mean" and len(values) == 2:
        return (values[0] + values[1]) / 2  # as NumPy does, at a tenth of its price
    return _QUIET(_REDUCTIONS[aggregation])(np.array(values))


def calculate_task_level_metrics(metrics: Sequence[Mapping[str, Any]], is_eval: bool) -> Metrics:
    return _eval_metrics(metrics) if is_eval else aggregate_run_level_metrics(metrics)


@_QUIET
def _eval_metrics(metrics: Sequence[Mapping[str, Any]]) -> Metrics:
    result: Metrics = {}
    for key, values in _columns(metrics).items():
        name, aggregation = split_suffix(key)
        if aggregation != "mean":
            result[key] = _REDUCTIONS[aggregation](values)
        elif any(part in key for part in _TIMES):
            result[key] = _mean(values)
        else:
            result.update(_spread(name, values))
    return result


def bootstrap_metric(
    data: Sequence[float] | Values,
    subset_size: int,
    reduce_fns: Sequence[Callable[[Any], Any]],
    n_bootstrap: int = 1000,
    seed: int = 42,
) -> list[tuple[float, float]]:
    """Return (mean, population standard deviation) of each reduction over random subsets, drawn with replacement.

    The draws are those of ``numpy.random.choice`` after ``numpy.random.seed(seed)``, from a generator of its own:
    nobody else's random numbers change.
    """
    subsets = np.asarray(data)[_draws(len(data), subset_size, n_bootstrap, seed)]
    results = []
    for reduce_fn in reduce_fns:
        # A row at a time costs milliseconds, and evaluation asks for these two many times over.
        rowwise = reduce_fn is np.max or reduce_fn is np.min
        reduced = reduce_fn(subsets, axis=1) if rowwise else [reduce_fn(subset) for subset in subsets]  # type: ignore[call-arg]  # only numpy's own get an axis
        results.append((float(np.mean(reduced)), float(np.std(reduced))))
    return results


def reward_of(metrics: Metrics) -> float | None:
    """Return the mean reward in a batch's metrics: ``rollout/reward/mean``, or ``eval/<name>/reward/mean@<n>``."""
    if "rollout/reward/mean" in metrics:
        return metrics["rollout/reward/mean"]
    for name, value in metrics.items():
        if name.startswith("eval/") and "/reward/mean@" in name:
            return value
    return None


@lru_cache(maxsize=16)
def _draws(population: int, subset_size: int, n_bootstrap: int, seed: int) -> NDArray[np.int64]:
    # [n_bootstrap, subset_size] indices; ``choice`` with replacement is ``randint``, draw after draw.
    # The legacy generator, because a newer one draws other numbers.
    return np.random.RandomState(seed).randint(0, population, size=(n_bootstrap, subset_size))


def _spread(name: str, values: Values) -> Metrics:
    n = len(values)
    result = {f"{name}/mean@{n}": _mean(values), f"{name}/std@{n}": float(np.std(values))}
    if n > 1:
        sizes = [1 << i for i in range(1, n.bit_length()) if 1 << i < n]
        for k in (*sizes, n):
            (best, _), (worst, _) = bootstrap_metric(values, k, [np.max, np.min])
            result[f"{name}/best@{k}"], result[f"{name}/worst@{k}"] = best, worst
    return result


@_QUIET
def _aggregate(metrics: Iterable[Mapping[str, Any]], prefix: str, stats: Sequence[Stat], *, plain: bool) -> Metrics:
    # ``plain`` leaves the name of the statistic out.
    start = f"{prefix}/" if prefix else ""
    result: Metrics = {}
    for key, values in _columns(metrics).items():
        name, aggregation = split_suffix(key)
        if aggregation != "mean":
            result[f"{start}{name}/{aggregation}"] = _REDUCTIONS[aggregation](values)
        else:
            for stat in stats:
                result[f"{start}{name}" if plain else f"{start}{name}/{stat}"] = _REDUCTIONS[stat](values)
    return result


def _columns(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Values]:
    # In the order of the maps, numbers only.
    return {key: np.array(values) for key, values in _numbers(metrics).items()}


def _numbers(metrics: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for values in metrics:
        for key, value in values.items():
            # Most are, and to ask for it by name is the cheapest.
            if type(value) is float:
                columns.setdefault(key, []).append(value)
            elif isinstance(value, (int, float, np.number)):
                columns.setdefault(key, []).append(float(value))
    return columns
