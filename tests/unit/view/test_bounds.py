from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    BatchSkipped,
    ExplorerHeartbeat,
    ExplorerLeft,
    PublishedVersion,
    RolloutFinished,
    RunnersReport,
    RunnerState,
    StepTrained,
    WeightsSynced,
)
from tests.support.fakes.mesh_records import batch, explorer_beat
from trinity_bus.view import Limits, MeshState
from trinity_bus.view.parts import RATE_SAMPLES

LIMITS = Limits(batches=3, explorers=3, steps=3, versions=3, syncs=3, errors=2, text=10, metrics=2)
FEW = Limits(batches=1, explorers=1, steps=1, versions=1, syncs=1, errors=1, text=1, metrics=1)

names = st.sampled_from([f"n{number}" for number in range(9)])
lives = st.sampled_from(["a", "b"])
numbers = st.integers(0, 20)
texts = st.text(max_size=30)
metrics = st.dictionaries(st.text(min_size=1, max_size=20), st.floats(0, 1), max_size=5)

who = {"explorer": names, "incarnation": lives}


def just(**values: object) -> dict[str, Any]:
    return {name: st.just(value) for name, value in values.items()}


RUNNERS = [RunnerState(runner="e/0", state="idle", pid=1)]
records = st.one_of(
    st.builds(
        BatchRecord, batch_id=names, state=st.sampled_from(BatchLifecycleState), reason=texts, metrics=metrics,
        **just(batch_type="train", sequence=0, expected_task_count=4),
    ),
    st.builds(BatchSkipped, batch_id=names, reason=texts, client=names, **just(sequence=1)),
    st.builds(
        ExplorerHeartbeat, **who, state=st.sampled_from(["starting", "ready", "syncing", "draining"]),
        model_version=numbers, tokens_generated=numbers, **just(slots=1),
    ),
    st.builds(RunnersReport, **who, **just(runners=RUNNERS)),
    st.builds(ExplorerLeft, **who),
    st.builds(
        WeightsSynced, **who, version=numbers, ok=st.booleans(), checksum=texts, error=texts,
        **just(model="policy", epoch=1),
    ),
    st.builds(
        StepTrained, incarnation=lives, model=st.sampled_from(["policy", "other"]), step=numbers, version=numbers,
        again=st.booleans(), metrics=metrics, checksum=texts, checkpoint=texts,
        **just(trainer="t", publish=True, master_address="127.0.0.1", master_port=1),
    ),
    st.builds(
        PublishedVersion, version=numbers, step=numbers, trainer_incarnation=lives, checksum=texts,
        **just(model="policy", method="gloo", trainer="t"),
    ),
    st.builds(
        RolloutFinished, **who, task_id=names, batch_id=names, error=texts,
        **just(attempt=1, batch_type="train", status="failed", completed_runs=0, total_runs=1),
    ),
)  # fmt: skip
histories = st.lists(st.tuples(records, st.floats(0, 100)), max_size=120)


@given(histories, st.sampled_from([LIMITS, FEW]))
def test_nothing_grows_over_its_limit(history: list[tuple[object, float]], limits: Limits) -> None:
    state = MeshState("policy", limits=limits)
    longest = limits.text + len("...")
    for record, at in history:
        state.apply(record, at)
        assert len(state.batches) <= limits.batches
        assert len(state.explorers) <= limits.explorers
        assert len(state.steps) <= limits.steps
        assert len(state.history) <= limits.versions
        assert sum(len(state.synced(version)) for version in range(21)) <= limits.syncs
        assert len(state.errors) <= limits.errors
        assert all(len(text) <= longest for text in state.errors)
        for one in state.batches.values():
            assert len(one.reason or "") <= longest
            assert len(one.metrics) <= limits.metrics
        for step in state.steps.values():
            assert len(step.metrics) <= limits.metrics
            assert max(len(step.checksum), len(step.checkpoint or "")) <= longest
        assert all(len(explorer.samples) <= RATE_SAMPLES for explorer in state.explorers.values())


@given(histories)
def test_what_is_kept_is_the_newest(history: list[tuple[object, float]]) -> None:
    small, whole = MeshState("policy", limits=LIMITS), MeshState("policy")
    for record, at in history:
        small.apply(record, at)
        whole.apply(record, at)
    assert small.now == whole.now
    assert small.rollouts == whole.rollouts
    last = [at for at, _ in sorted(((at, n) for n, (_, at) in enumerate(history)), reverse=True)]
    assert small.now == (last[0] if last else 0.0)
    assert sorted(small.steps) == sorted(whole.steps)[-LIMITS.steps :]
    assert sorted(small.history) == sorted(whole.history)[-LIMITS.versions :]
    assert len(small.errors) == min(LIMITS.errors, len(whole.errors))


def test_what_goes_on_or_is_heard_stays_where_others_have_ended() -> None:
    state = MeshState(limits=LIMITS)

    def say(name: str, what: BatchLifecycleState) -> None:
        state.apply(batch(name, what), 1.0)

    say("going", BatchLifecycleState.RUNNING)
    for number in range(5):
        say(str(number), BatchLifecycleState.ABORTED)
    assert [*state.batches] == ["going", "3", "4"]
    state = MeshState(limits=LIMITS)
    for number in range(9):
        for name in ("heard", f"once-{number}"):
            state.apply(explorer_beat(name), float(number))
    assert sorted(state.explorers) == ["heard", "once-7", "once-8"]
