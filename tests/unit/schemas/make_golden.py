"""Writes ``golden/``: one encoded record of every type, as version 1 of this project wrote it.

The files are history: run this for a type that has none yet, never to make a failing test pass.
"""

from pathlib import Path

from record_strategies import small_group

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    Cancel,
    Dispatch,
    ExperienceGroup,
    ExplorerHeartbeat,
    ExplorerLeft,
    ManifestEntry,
    Member,
    Message,
    ModelVersion,
    Position,
    Record,
    RolloutFinished,
    RunningAttempt,
    Sampling,
    StepTrained,
    Task,
    TrainerHeartbeat,
    WeightsSynced,
)
from schemas.codec import encode

GOLDEN = Path(__file__).parent / "golden"

TASK = Task(
    task_id="task-1",
    workflow="math",
    prompt="What is 6 times 7?",
    messages=[Message(role="user", content="What is 6 times 7?")],
    answer="42",
    data={"level": 3, "tags": ["easy", None], "weight": 0.5},
    batch_id="batch-1",
    batch_size=8,
    repeat_times=4,
    sampling=Sampling(temperature=0.7, top_p=0.9, top_k=20, max_tokens=64, seed=-1, stop=["\n"]),
    timeout_s=30.0,
)

RECORDS: tuple[Record | ExperienceGroup, ...] = (
    TASK,
    Dispatch(
        explorer="explorer-0",
        incarnation="life-1",
        task=TASK,
        attempt=1,
        batch_id="batch-1",
        batch_type="train",
        repeat_times=4,
        min_version=2,
        timeout_s=30.0,
    ),
    Cancel(explorer="explorer-0", incarnation="life-1", task_id="task-1", attempt=1, reason="timed out"),
    small_group(),
    ExplorerHeartbeat(
        explorer="explorer-0",
        incarnation="life-1",
        state="ready",
        slots=64,
        running=[RunningAttempt(task_id="task-1", attempt=1)],
        model_version=2,
        workflows=["math"],
        tokens_generated=1000,
        sent_at=1_750_000_000.25,
    ),
    ExplorerLeft(explorer="explorer-0", incarnation="life-1", reason="shut down"),
    RolloutFinished(
        explorer="explorer-0",
        incarnation="life-1",
        task_id="task-1",
        attempt=1,
        batch_id="batch-1",
        batch_type="train",
        status="partial",
        completed_runs=3,
        total_runs=4,
        metrics=[{"accuracy": 1.0}, {"accuracy": 0.0}],
        experience=Position(partition=3, offset=17),
        samples=3,
        version_min=1,
        version_max=2,
        prompt_tokens=30,
        response_tokens=60,
        seconds=1.5,
        error="TimeoutError: 30 s",
    ),
    TrainerHeartbeat(
        trainer="trainer-0",
        incarnation="life-1",
        state="training",
        model="policy",
        step=2,
        version=2,
        master_address="127.0.0.1",
        master_port=29500,
        sent_at=1_750_000_000.25,
    ),
    StepTrained(
        trainer="trainer-0",
        incarnation="life-1",
        model="policy",
        step=2,
        version=2,
        publish=True,
        batch_id="batch-1",
        metrics={"loss": 0.25},
        checksum="00ff",
        master_address="127.0.0.1",
        master_port=29500,
        checkpoint="step-2",
        seconds=2.5,
    ),
    WeightsSynced(
        explorer="explorer-0",
        incarnation="life-1",
        model="policy",
        version=2,
        epoch=1,
        ok=True,
        checksum="00ff",
        control_s=0.01,
        transfer_s=0.2,
        pause_s=0.3,
    ),
    BatchRecord(
        batch_id="batch-1",
        batch_type="train",
        state=BatchLifecycleState.FINALIZED,
        sequence=1,
        expected_task_count=8,
        accepted_task_count=8,
        completed_task_count=8,
        failed_task_count=1,
        min_version=0,
        manifest=[
            ManifestEntry(
                task_id="task-1",
                attempt=1,
                samples=3,
                position=Position(partition=3, offset=17),
                version_min=1,
                version_max=2,
            ),
            ManifestEntry(task_id="task-2", attempt=3, samples=0, error="ValueError: no"),
        ],
        metrics={"accuracy": 0.5},
        trace_links=["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
    ),
    ModelVersion(
        model="policy",
        version=2,
        step=2,
        method="gloo",
        epoch=1,
        members=[Member(explorer="explorer-0", incarnation="life-1", rank=1)],
        trainer="trainer-0",
        trainer_incarnation="life-1",
        master_address="127.0.0.1",
        master_port=29500,
        checksum="00ff",
        metrics={"loss": 0.25},
    ),
)


def main() -> None:
    """Write the files that are missing."""
    for record in RECORDS:
        path = GOLDEN / f"{record.SCHEMA}.v{record.VERSION}.msgpack"
        if not path.exists():
            path.write_bytes(encode(record))


if __name__ == "__main__":
    main()
