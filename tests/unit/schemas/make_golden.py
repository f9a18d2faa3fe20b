"""Writes ``golden/``: one encoded record of every type, as version 1 of this project wrote it.

The files are history: run this for a type that has none yet, never to make a failing test pass.
"""

from pathlib import Path
from typing import Any

import numpy as np

import schemas
from schemas.codec import encode
from tests.unit.schemas.record_strategies import full_group, small_group

GOLDEN = Path(__file__).parent / "golden"

EXPLORER: dict[str, Any] = {"explorer": "explorer-0", "incarnation": "life-1"}
TRAINER: dict[str, Any] = {"trainer": "trainer-0", "incarnation": "life-1", "model": "policy"}
MASTER: dict[str, Any] = {"master_address": "127.0.0.1", "master_port": 29500}
VERSION_2: dict[str, Any] = {"version": 2, "step": 2}
GLOO: dict[str, Any] = {"method": "gloo", "trainer": "trainer-0", "trainer_incarnation": "life-1"}
BATCH: dict[str, Any] = {"batch_id": "batch-1", "batch_type": "train"}
PARTLY: dict[str, Any] = {"status": "partial", "completed_runs": 3, "total_runs": 4}
AT = schemas.Position(partition=3, offset=17)
PARTS = [schemas.ResultPart(attempt=1, samples=3, position=AT)]
PLAIN_ROLLOUT: dict[str, Any] = {
    **dict.fromkeys(("version_min", "version_max"), -1),
    **dict.fromkeys(("prompt_tokens", "response_tokens", "seconds"), 0),
    "metrics": [],
}
TASK = schemas.Task(
    task_id="task-1",
    workflow="math",
    prompt="What is 6 times 7?",
    messages=[schemas.Message(role="user", content="What is 6 times 7?")],
    answer="42",
    data={"level": 3, "tags": ["easy", None], "weight": 0.5},
    batch_id="batch-1",
    batch_size=8,
    repeat_times=4,
    sampling=schemas.Sampling(temperature=0.7, top_p=0.9, top_k=20, max_tokens=64, seed=-1, stop=["\n"]),
    timeout_s=30.0,
)

RECORDS: tuple[schemas.Record | schemas.ExperienceGroup, ...] = (
    TASK,
    schemas.Dispatch(**EXPLORER, task=TASK, attempt=1, **BATCH, repeat_times=4, min_version=2, timeout_s=30.0),
    schemas.Turn(
        task_id="task-1",
        attempt=2,
        run_id=3,
        number=1,
        after=1,
        workflow="agent",
        **EXPLORER,
        answers=[
            schemas.Answer(
                question="00" * 16,
                responses=[
                    schemas.DrawnResponse(
                        token_ids=bytes([7, 0, 0, 0]),
                        logprobs=bytes([0, 0, 128, 191]),
                        finish_reason="stop",
                        versions=[[0, 2]],
                    )
                ],
            ),
            schemas.Answer(question="ff" * 16, result='"Jay Kreps"'),
        ],
    ),
    schemas.Cancel(**EXPLORER, task_id="task-1", attempt=1, reason="timed out"),
    small_group(),
    schemas.ExplorerHeartbeat(
        **EXPLORER,
        state="ready",
        slots=64,
        running=[schemas.RunningAttempt(task_id="task-1", attempt=1)],
        model_version=2,
        workflows=["math"],
        tokens_generated=1000,
        sent_at=1_750_000_000.25,
    ),
    schemas.ExplorerLeft(**EXPLORER, reason="shut down"),
    schemas.RolloutFinished(
        **EXPLORER,
        task_id="task-1",
        attempt=1,
        **BATCH,
        **PARTLY,
        metrics=[{"accuracy": 1.0}, {"accuracy": 0.0}],
        experience=AT,
        samples=3,
        version_min=1,
        version_max=2,
        prompt_tokens=30,
        response_tokens=60,
        seconds=1.5,
        error="TimeoutError: 30 s",
    ),
    schemas.TrainerHeartbeat(**TRAINER, state="training", **VERSION_2, **MASTER, sent_at=1_750_000_000.25),
    schemas.StepTrained(
        **TRAINER,
        **VERSION_2,
        publish=True,
        batch_id="batch-1",
        metrics={"loss": 0.25},
        checksum="00ff",
        **MASTER,
        checkpoint="step-2",
        seconds=2.5,
    ),
    schemas.WeightsSynced(
        **EXPLORER,
        model="policy",
        version=2,
        epoch=1,
        ok=True,
        checksum="00ff",
        control_s=0.01,
        transfer_s=0.2,
        pause_s=0.3,
    ),
    schemas.SubmitBatch(
        client="client-0",
        command_id="c-1",
        batch_id="batch-1",
        batch_type="eval",
        expected_task_count=8,
        min_wait_num=6,
    ),
    schemas.FinalizeBatch(client="client-0", command_id="c-2", batch_id="batch-1", batch_type="eval", timeout_s=60.0),
    schemas.AbortBatch(
        client="client-0", command_id="c-3", batch_id="batch-1", reason="enough", keep_partial_results=True
    ),
    schemas.CancelTasks(
        client="client-0", command_id="c-4", batch_id="batch-1", reason="late", return_partial_tasks=True
    ),
    schemas.CommandReply(
        client="client-0",
        command_id="c-2",
        batch_id="batch-1",
        error="timeout",
        detail="Timeout waiting for batch batch-1.",
        result=schemas.BatchResult(
            batch_id="batch-1",
            batch_type="eval",
            state=schemas.BatchLifecycleState.FINALIZED,
            finished_task_count=8,
            metrics={"accuracy": 0.5},
        ),
    ),
    schemas.TaskResult(
        task_id="task-1",
        **BATCH,
        **PARTLY,
        parts=PARTS,
        metrics={"reward": 0.25},
        version_min=1,
        version_max=2,
        seconds=1.5,
        attempts=2,
        error="ValueError: no",
    ),
    schemas.TasksetPosition(
        taskset="taskset-0",
        fingerprint="00ff",
        produced=100,
        ended=90,
        examined=3,
        results=[schemas.Position(partition=0, offset=17)],
    ),
    schemas.RunnersReport(
        **EXPLORER,
        runners=[
            schemas.RunnerState(
                runner="explorer-0/0",
                state="busy",
                pid=4711,
                running=[schemas.RunningAttempt(task_id="task-1", attempt=1)],
                completed=17,
                restarts=1,
                rss_mib=80.5,
                values=[{"workflow_id": "batch-1/task-1/0", "model_version": 3}],
            )
        ],
        sent_at=1.5,
    ),
    schemas.CoordinatorHeartbeat(
        coordinator="coordinator-0",
        incarnation="life-1",
        open_batches=2,
        open_tasks=100,
        running_attempts=64,
        max_timeout_s=300.0,
        attempts_per_task=3,
        dynamic_timeout_s=12.5,
        wait_after_min_s=30.0,
        sent_at=1.5,
    ),
    schemas.BatchRecord(
        **BATCH,
        state=schemas.BatchLifecycleState.FINALIZED,
        sequence=1,
        expected_task_count=8,
        accepted_task_count=8,
        completed_task_count=8,
        failed_task_count=1,
        min_version=0,
        manifest=[
            schemas.ManifestEntry(task_id="task-1", status="completed", parts=PARTS, version_min=1, version_max=2),
            schemas.ManifestEntry(task_id="task-2", status="failed", error="ValueError: no"),
        ],
        metrics={"accuracy": 0.5},
        trace_links=["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
    ),
    schemas.ModelVersion(
        model="policy",
        **VERSION_2,
        epoch=1,
        members=[schemas.Member(**EXPLORER, rank=1)],
        **GLOO,
        **MASTER,
        checksum="00ff",
        metrics={"loss": 0.25},
    ),
    schemas.PublishedVersion(
        model="policy",
        **VERSION_2,
        batch_id="batch-1",
        **GLOO,
        checksum="00ff",
        checkpoint="/checkpoints/step-00000002",
        metrics={"loss": 0.25},
        seconds=1.5,
    ),
    schemas.PublishVersion(client="cli-1", command_id="1", model="policy", version=2),
    schemas.FinalizeUpgrade(client="cli-1", command_id="2", level=3),
    schemas.Contribute(
        client="client-1",
        command_id="c-8",
        task_id="made-1",
        pieces=[schemas.ExperiencePiece(samples=4, position=AT)],
        version_min=6,
        version_max=7,
        producer="me",
    ),
    schemas.SkipBatch(client="cli-1", command_id="2", batch_id="batch-1", reason="its rewards are wrong"),
    schemas.RollBack(client="cli-1", command_id="3", model="policy", version=2, reason="it diverged"),
    schemas.SetPace(**EXPLORER, pace_s=8.0),
    schemas.Superseded(service="explorer", name="explorer-0", incarnation="life-1", by="life-2"),
    schemas.BatchSkipped(batch_id="batch-1", sequence=1, reason="its rewards are wrong", client="cli-1"),
    schemas.VersionWanted(model="policy", at_least=3, sent_at=1.5),
    schemas.VersionRefused(**TRAINER, version=2, reason="its checkpoint is gone", available=[4, 5]),
    schemas.StepBegun(
        **TRAINER,
        run="run-1",
        step=3,
        batch_id="batch-3",
        sequence=3,
        next_offset=17,
        seed=7,
        groups=[schemas.StepGroup(task_id="task-1", parts=PARTS)],
        left_out=[schemas.LeftOut(task_id="task-1", reason="bad_reward", samples=[0, 2], detail="reward inf")],
        replayed=[schemas.StepGroup(task_id="task-0", parts=[schemas.ResultPart(attempt=1, samples=1)])],
        demonstrations=[schemas.Position(partition=0, offset=4)],
        skipped="its rewards are wrong",
    ),
    schemas.StepEnded(
        trainer="replay-12",
        incarnation="life-1",
        run="0123456789abcdef",
        model="policy",
        step=12,
        batch_id="batch-12",
        follows="trainer-0",
        metrics={"loss": 0.25},
        seconds=1.5,
    ),
    schemas.TokenFigures(
        trainer="trainer-0",
        run="0123456789abcdef",
        step=12,
        task_id="t-1",
        position=schemas.Position(partition=3, offset=41),
        samples=[0, 2],
        lengths=[2, 1],
        updates_before=[0, 1],
        gaps=np.array([0.0, -0.125, 0.5], "<f2").tobytes(),
        entropies=np.array([0.25, 1.5, 0.0], "<f2").tobytes(),
    ),
    schemas.Demonstration(example_id="d-1", prompt="What is 6 times 7?", response="42", weight=0.5),
    schemas.Preference(
        example_id="p-1",
        messages=[schemas.Message(role="user", content="What is 6 times 7?")],
        chosen="42",
        rejected="41",
    ),
)


def but(kind: type[schemas.Record], **changes: Any) -> schemas.Record:
    """The record of this type above, with some fields changed."""
    (found,) = [record for record in RECORDS if type(record) is kind]
    assert isinstance(found, schemas.Record)
    return found.model_copy(update=changes)


PLAIN_BEAT = {"incarnation": "life", "sent_at": 0.0}
PLAIN_EXPLORER = {**PLAIN_BEAT, "slots": 4, "running": [], "model_version": -1, "workflows": [], "tokens_generated": 0}
PLAIN_STEP: dict[str, Any] = {"batch_id": None, "metrics": {}, "checkpoint": None, "seconds": 0.0}
PLAIN_VERSION: dict[str, Any] = {"members": [], "metrics": {}}
PLAIN_BEGUN: dict[str, Any] = {"run": "0123456789abcdef", "seed": 0, "skipped": None} | {
    name: [] for name in ("groups", "left_out", "replayed", "demonstrations")
}
PLAIN_TURN = schemas.Turn(
    task_id="me/s-1", attempt=1, run_id=0, number=0, workflow="gateway", explorer="gateway-0", incarnation="life-1",
    answers=[], answer_id="chatcmpl-1",
)  # fmt: skip
SOURCE = "org/model@0123456789abcdef0123456789abcdef01234567"
CALL = schemas.FunctionCall(name="search", arguments='{"query": "it"}')
SEARCH = schemas.FunctionSchema(
    name="search", description="Look it up.", parameters={"type": "object", "properties": {}}
)
TIMES = schemas.ToolCall(id="call-1", function=schemas.FunctionCall(name="times", arguments="[6, 7]"))
PIECES = [
    schemas.ExperiencePiece(samples=3, position=AT),
    schemas.ExperiencePiece(samples=1, position=schemas.Position(partition=3, offset=18)),
]

NEWER: dict[str, schemas.Record | schemas.ExperienceGroup] = {
    "command.publish_version.v1.asked_by.msgpack": but(schemas.PublishVersion, asked_by="ada@example.org"),
    "command.roll_back.v1.asked_by.msgpack": but(schemas.RollBack, asked_by="ada"),
    "model_version.v1.asked_by.msgpack": but(schemas.ModelVersion, **PLAIN_VERSION, pinned=True, asked_by="ada"),
    "event.explorer_heartbeat.v1.settings.msgpack": but(
        schemas.ExplorerHeartbeat, **PLAIN_EXPLORER, settings={"explorer.temperature": "0.7", "explorer.slots": ""}
    ),
    "event.explorer_heartbeat.v1.http_requests.msgpack": but(
        schemas.ExplorerHeartbeat, **PLAIN_EXPLORER, http_requests=3
    ),
    "turn.v1.answer_id.msgpack": PLAIN_TURN,
    "turn.v1.prompt.msgpack": PLAIN_TURN.model_copy(update={"task_id": "me/chatcmpl-1", "prompt": bytes([7, 0, 0, 0])}),
    "command.contribute.v1.covers.msgpack": but(schemas.Contribute, producer=None, covers=["me/chatcmpl-1"]),
    "event.trainer_heartbeat.v1.settings.msgpack": but(
        schemas.TrainerHeartbeat, **PLAIN_BEAT, state="ready", settings={"trainer.learning_rate": "1e-06"}
    ),
    "event.coordinator_heartbeat.v1.settings.msgpack": but(
        schemas.CoordinatorHeartbeat, **PLAIN_BEAT, settings={"coordinator.batch_size": "32"}
    ),
    "event.explorer_heartbeat.v1.proved.msgpack": but(
        schemas.ExplorerHeartbeat, **PLAIN_EXPLORER, address="127.0.0.1:8100", address_proof="0" * 64
    ),
    "event.explorer_heartbeat.v1.paced.msgpack": but(schemas.ExplorerHeartbeat, **PLAIN_EXPLORER, pace_s=8.0),
    "experience.v1.full.msgpack": full_group(),
    "task.v1.tools.msgpack": schemas.Task(
        task_id="task-1",
        workflow="agent",
        messages=[
            schemas.Message(role="user", content=[schemas.ContentPart(text="Who wrote it?")]),
            schemas.Message(
                role="assistant",
                reasoning_content="I look it up.",
                tool_calls=[schemas.ToolCall(id="call-1", function=CALL)],
            ),
            schemas.Message(role="tool", content="Kreps", tool_call_id="call-1", name="search"),
        ],
        tools=[schemas.Tool(function=SEARCH)],
        sampling=schemas.Sampling(
            min_p=0.125,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            repetition_penalty=1.5,
            stop_token_ids=[7],
            ignore_eos=True,
            min_tokens=2,
            bad_words=["no"],
            logit_bias={"5": 2.0},
            allowed_token_ids=[1, 2],
            structured_outputs=schemas.StructuredOutputs(json_schema={"type": "object"}),
            skip_special_tokens=False,
            thinking_token_budget=16,
        ),
    ),
    "demonstration.v1.messages.msgpack": schemas.Demonstration(
        example_id="d-2",
        messages=[
            schemas.Message(role="user", content="What is 6 times 7?"),
            schemas.Message(role="assistant", tool_calls=[TIMES]),
            schemas.Message(role="tool", content="42", tool_call_id="call-1"),
            schemas.Message(role="assistant", content="42"),
        ],
        tools=[schemas.Tool(function=schemas.FunctionSchema(name="times"))],
    ),
    "step_begun.v1.examples.msgpack": but(
        schemas.StepBegun,
        **PLAIN_BEGUN | {"model": "default", "batch_id": "preferences-3", "next_offset": 0, "examples": 9},
        preferences=[schemas.Position(partition=0, offset=4)],
    ),
    "step_begun.v1.follows.msgpack": but(
        schemas.StepBegun,
        **PLAIN_BEGUN
        | {"trainer": "replay-12", "step": 12, "batch_id": "batch-12", "sequence": 12, "follows": "trainer-0"},
    ),
    "event.step_trained.v1.writer.msgpack": but(schemas.StepTrained, **PLAIN_STEP, writer="trainer-0/grpo"),
    "published_version.v1.writer.msgpack": but(schemas.PublishedVersion, **PLAIN_STEP, writer="trainer-0/grpo"),
    "event.step_trained.v1.source.msgpack": but(schemas.StepTrained, **PLAIN_STEP, dtype="bfloat16", source=SOURCE),
    "model_version.v1.source.msgpack": but(schemas.ModelVersion, **PLAIN_VERSION, dtype="bfloat16", source=SOURCE),
    "published_version.v1.source.msgpack": but(schemas.PublishedVersion, **PLAIN_STEP, source=SOURCE),
    "event.rollout_finished.v1.runs.msgpack": but(
        schemas.RolloutFinished, **PLAIN_ROLLOUT, completed_runs=2, samples=5, error="ValueError: no", runs=[0, 3]
    ),
    "event.rollout_finished.v1.pieces.msgpack": but(
        schemas.RolloutFinished,
        **PLAIN_ROLLOUT | {"version_min": 1, "version_max": 2, "status": "completed", "completed_runs": 4},
        samples=4,
        experience=None,
        error=None,
        pieces=PIECES,
    ),
}
"""Shapes that version 1 got later, by the names of their files."""


def main() -> None:
    """Write the files that are missing."""
    named = {f"{record.SCHEMA}.v{record.VERSION}.msgpack": record for record in RECORDS} | NEWER
    for name, record in named.items():
        path = GOLDEN / name
        if not path.exists():
            path.write_bytes(encode(record))


if __name__ == "__main__":
    main()
