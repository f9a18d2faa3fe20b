from collections.abc import Callable, Iterable
from typing import Any

import pytest
from opentelemetry.metrics import CallbackOptions, Observation

from schemas import BatchLifecycleState, BatchRecord
from tests.support.fakes.mesh_records import explorer_beat
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import CoordinatorMachine, EventArrived
from workers.coordinator import observations


class Meter:
    """Keeps what it is asked to observe, and observes it when told."""

    def __init__(self) -> None:
        self.gauges: dict[str, Callable[[CallbackOptions], Iterable[Observation]]] = {}

    def create_observable_gauge(self, name: str, callbacks: Any, **_more: Any) -> None:
        [self.gauges[name]] = callbacks

    def observed(self) -> dict[str, list[float]]:
        return {name: [o.value for o in gauge(CallbackOptions())] for name, gauge in self.gauges.items()}


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    meter = Meter()
    monkeypatch.setattr(observations, "_METER", meter)
    return meter


def test_one_that_works_tells_of_its_mesh_and_one_that_stands_by_only_that(meter: Meter) -> None:
    observations.watch(lambda: None)
    observed = meter.observed()
    assert observed.pop("rl.coordinator.active") == [0]
    assert set(map(tuple, observed.values())) == {()}
    machine = CoordinatorMachine(CoordinatorSettings())
    machine.handle(EventArrived(explorer_beat(slots=4, workflows=["math"])), now=0.0)
    observations.watch(lambda: machine)
    observed = meter.observed()
    assert observed["rl.coordinator.active"] == [1]
    assert observed["rl.coordinator.explorers"] == [1]
    assert observed["rl.coordinator.slots"] == [0, 4]
    assert observed["rl.coordinator.tasks"] == [0]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(state: BatchLifecycleState, batch_id: str = "b") -> BatchRecord:
    return BatchRecord(batch_id=batch_id, batch_type="train", state=state, sequence=1, expected_task_count=2)


def test_a_batch_ages_in_each_state_and_is_forgotten_at_its_end() -> None:
    clock = Clock()
    ages = observations.BatchAges(clock)
    ages.moved(record(BatchLifecycleState.PENDING))
    clock.now = 5.0
    ages.moved(record(BatchLifecycleState.PENDING, "other"))
    assert ages.counts() == {("pending", "train"): 2}
    assert ages.oldest() == {("pending", "train"): 5.0}
    ages.moved(record(BatchLifecycleState.RUNNING))
    clock.now = 7.0
    assert ages.oldest() == {("running", "train"): 2.0, ("pending", "train"): 2.0}
    ages.moved(record(BatchLifecycleState.FINALIZED))
    ages.moved(record(BatchLifecycleState.ABORTED, "other"))
    assert not ages.counts()
    assert not ages.oldest()
