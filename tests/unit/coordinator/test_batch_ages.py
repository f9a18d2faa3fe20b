from schemas import BatchLifecycleState, BatchRecord
from workers.coordinator.gauges import BatchAges


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(state: BatchLifecycleState, batch_id: str = "b") -> BatchRecord:
    return BatchRecord(batch_id=batch_id, batch_type="train", state=state, sequence=1, expected_task_count=2)


def test_a_batch_ages_in_each_state_and_is_forgotten_at_its_end() -> None:
    clock = Clock()
    ages = BatchAges(clock)
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
