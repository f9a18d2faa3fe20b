"""Hypothesis strategies for every record that travels by itself."""

import dataclasses
from functools import partial
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from schemas import (
    AbortBatch,
    Answer,
    BatchLifecycleState,
    BatchRecord,
    BatchResult,
    BatchSkipped,
    Cancel,
    CancelTasks,
    CommandReply,
    ContentPart,
    CoordinatorHeartbeat,
    Demonstration,
    Dispatch,
    DrawnResponse,
    ExperienceGroup,
    ExperiencePiece,
    ExplorerHeartbeat,
    ExplorerLeft,
    FinalizeBatch,
    FinalizeUpgrade,
    FunctionCall,
    FunctionSchema,
    LeftOut,
    ManifestEntry,
    Member,
    Message,
    ModelVersion,
    Position,
    Preference,
    PublishedVersion,
    PublishVersion,
    ResultPart,
    RollBack,
    Rollback,
    Rollout,
    RolloutFinished,
    RunnersReport,
    RunnerState,
    RunningAttempt,
    Sampling,
    SetPace,
    SkipBatch,
    SkippedBatch,
    StepBegun,
    StepEnded,
    StepGroup,
    StepTrained,
    StructuredOutputs,
    SubmitBatch,
    Superseded,
    Task,
    TaskResult,
    TasksetPosition,
    TokenFigures,
    Tool,
    ToolCall,
    TrainerHeartbeat,
    Turn,
    VersionRefused,
    VersionWanted,
    WeightsSynced,
    build_group,
)
from schemas.experience import MAX_SAMPLES

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
identifiers = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@#-]{0,20}", fullmatch=True)
counts = st.integers(0, 2**31 - 1)
positive = st.integers(1, 2**31 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(0, 1e9)
times = st.floats(0, 253_402_300_799)
ports = st.integers(0, 65_535)
runs = st.integers(0, 1024)
metrics = st.dictionaries(text, st.floats(allow_nan=False), max_size=3)
batch_types: st.SearchStrategy[Literal["train", "eval"]] = st.sampled_from(["train", "eval"])
plain_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
positions = st.builds(Position, partition=counts, offset=counts)
result_parts = st.builds(
    ResultPart, attempt=positive, samples=st.integers(0, MAX_SAMPLES), position=st.none() | positions
)
step_groups = st.builds(StepGroup, task_id=identifiers, parts=st.lists(result_parts, min_size=1, max_size=2))


@st.composite
def token_figures(draw: st.DrawFn) -> TokenFigures:
    """Return a strategy for figures whose columns agree."""
    samples = draw(st.sets(st.integers(0, MAX_SAMPLES - 1), min_size=1, max_size=4).map(sorted))
    lengths = draw(st.lists(st.integers(0, 5), min_size=len(samples), max_size=len(samples)))
    halves = partial(st.floats, width=16, allow_nan=False, allow_infinity=False)

    def column(numbers: st.SearchStrategy[float]) -> bytes:
        return np.array(draw(st.lists(numbers, min_size=sum(lengths), max_size=sum(lengths))), "<f2").tobytes()

    return TokenFigures(
        trainer=draw(identifiers),
        run=draw(identifiers),
        step=draw(positive),
        task_id=draw(identifiers),
        position=draw(positions),
        samples=samples,
        lengths=lengths,
        updates_before=draw(st.lists(counts, min_size=len(samples), max_size=len(samples))),
        gaps=column(halves()),
        entropies=column(halves(min_value=0)),
    )


said = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
statuses = st.sampled_from(["completed", "partial", "failed", "aborted"])
samplings = st.builds(
    Sampling,
    temperature=st.none() | st.floats(0, 10),
    top_p=st.none() | st.floats(0.01, 1),
    top_k=st.none() | st.integers(-1, 100),
    min_p=st.none() | st.floats(0, 1),
    max_tokens=st.none() | st.integers(1, 4096),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.none() | st.lists(text.filter(bool), max_size=2),
    presence_penalty=st.none() | st.floats(-2, 2),
    frequency_penalty=st.none() | st.floats(-2, 2),
    repetition_penalty=st.none() | st.floats(0.01, 100),
    stop_token_ids=st.none() | st.lists(counts, max_size=2),
    ignore_eos=st.none() | st.booleans(),
    min_tokens=st.none() | st.integers(0, 4096),
    bad_words=st.none() | st.lists(words, max_size=2),
    logit_bias=st.none() | st.dictionaries(counts.map(str), st.floats(-100, 100), max_size=2),
    allowed_token_ids=st.none() | st.lists(counts, min_size=1, max_size=2),
    structured_outputs=st.none()
    | st.builds(StructuredOutputs, json_schema=st.dictionaries(text, plain_data, max_size=2))
    | st.builds(StructuredOutputs, choice=st.lists(words, min_size=1, max_size=2)),
    skip_special_tokens=st.none() | st.booleans(),
    thinking_token_budget=st.none() | st.integers(0, 4096),
)
calls = st.builds(ToolCall, id=words, function=st.builds(FunctionCall, name=words, arguments=text))
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=text | st.lists(st.builds(ContentPart, text=text), max_size=2),
    name=st.none() | words,
    tool_calls=st.none() | st.lists(calls, min_size=1, max_size=2),
    tool_call_id=st.none() | words,
    reasoning_content=st.none() | text,
)
functions = st.builds(
    FunctionSchema,
    name=words,
    description=st.none() | text,
    parameters=st.none() | st.dictionaries(text, plain_data, max_size=2),
)


def _task(**fields: Any) -> Task:
    """Build a task; runs at temperature 0 are all alike, and a task asks for one of them at most."""
    greedy = fields["sampling"] is not None and fields["sampling"].temperature == 0
    return Task(**fields | ({"repeat_times": 1} if greedy else {}))


tasks = st.builds(
    _task,
    task_id=identifiers,
    workflow=identifiers,
    prompt=text,
    messages=st.none() | st.lists(messages, max_size=2),
    tools=st.none() | st.lists(st.builds(Tool, function=functions), max_size=2),
    answer=st.none() | text,
    data=st.dictionaries(text, plain_data, max_size=3),
    batch_id=st.none() | identifiers,
    batch_type=batch_types,
    batch_size=st.none() | st.integers(1, 65_536),
    repeat_times=st.none() | st.integers(1, 1024),
    sampling=st.none() | samplings,
    timeout_s=st.none() | st.floats(0.001, 86_400),
)
senders: dict[str, Any] = {"explorer": identifiers, "incarnation": identifiers}
trainers: dict[str, Any] = {"trainer": identifiers, "incarnation": identifiers, "model": identifiers}
commands: dict[str, Any] = {"client": identifiers, "command_id": identifiers, "batch_id": identifiers}
drawn_responses = st.integers(0, 3).flatmap(
    lambda n: st.builds(
        DrawnResponse,
        token_ids=st.binary(min_size=4 * n, max_size=4 * n),
        logprobs=st.binary(min_size=4 * n, max_size=4 * n),
        finish_reason=text,
        versions=st.lists(st.tuples(counts, st.integers(-1, 100)).map(list), max_size=2),
    )
)
questions = st.text("0123456789abcdef", min_size=32, max_size=32)
turn_answers = st.builds(Answer, question=questions, result=text) | st.builds(
    Answer, question=questions, responses=st.lists(drawn_responses, max_size=2)
)
running_attempts = st.builds(RunningAttempt, task_id=identifiers, attempt=positive, turns=st.none() | positions)
reasons = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
people = st.none() | st.text(min_size=1, max_size=100)
rollbacks = st.none() | st.builds(Rollback, to=counts, through=counts, reason=text, asked_by=people)
skipped = st.lists(st.builds(SkippedBatch, batch_id=identifiers, step=positive, reason=text), max_size=2)
records = st.one_of(
    st.builds(SubmitBatch, **commands, batch_type=batch_types, expected_task_count=st.none() | st.integers(0, 65_536)),
    st.builds(FinalizeBatch, **commands, batch_type=batch_types, timeout_s=st.none() | st.floats(0, 86_400)),
    st.builds(
        RollBack,
        client=identifiers,
        command_id=identifiers,
        model=identifiers,
        version=counts,
        reason=reasons,
        asked_by=people,
    ),
    st.builds(AbortBatch, **commands, reason=reasons, keep_partial_results=st.booleans()),
    st.builds(CancelTasks, **commands, reason=reasons, return_partial_tasks=st.booleans()),
    st.builds(SkipBatch, **commands, reason=reasons),
    st.builds(
        PublishVersion,
        client=identifiers,
        command_id=identifiers,
        model=identifiers,
        version=st.none() | counts,
        asked_by=people,
    ),
    st.builds(FinalizeUpgrade, client=identifiers, command_id=identifiers, level=positive),
    st.builds(
        CommandReply,
        **commands,
        error=st.none() | st.just("timeout"),
        detail=text,
        result=st.none()
        | st.builds(
            BatchResult,
            batch_id=identifiers,
            batch_type=batch_types,
            state=st.sampled_from(BatchLifecycleState),
            finished_task_count=counts,
            metrics=metrics,
        ),
    ),
    st.builds(
        TaskResult,
        task_id=identifiers,
        batch_id=identifiers,
        batch_type=batch_types,
        status=statuses,
        completed_runs=counts,
        total_runs=positive,
        parts=st.lists(result_parts, max_size=3),
        metrics=metrics,
        attempts=counts,
        error=st.none() | text,
    ),
    st.builds(
        TasksetPosition,
        taskset=identifiers,
        fingerprint=st.text("0123456789abcdef", min_size=1, max_size=64),
        produced=counts,
        ended=counts,
        examined=st.integers(-1, 100),
        results=st.lists(positions, max_size=2),
    ),
    st.builds(
        RunnersReport,
        **senders,
        runners=st.lists(
            st.builds(
                RunnerState,
                runner=identifiers,
                state=st.sampled_from(["starting", "idle", "busy", "stopping"]),
                pid=counts,
                running=st.lists(st.builds(RunningAttempt, task_id=identifiers, attempt=positive), max_size=2),
                values=st.lists(st.dictionaries(text, plain_data, max_size=3), max_size=2),
            ),
            max_size=2,
        ),
    ),
    st.builds(
        CoordinatorHeartbeat,
        coordinator=identifiers,
        incarnation=identifiers,
        open_batches=counts,
        open_tasks=counts,
        running_attempts=counts,
        max_timeout_s=seconds,
        attempts_per_task=counts,
        dynamic_timeout_s=seconds,
        sent_at=times,
    ),
    tasks,
    st.builds(
        Dispatch,
        **senders,
        task=tasks,
        attempt=positive,
        batch_id=identifiers,
        batch_type=batch_types,
        repeat_times=st.integers(1, 1024),
        run_id_base=counts,
        min_version=counts,
        timeout_s=st.floats(0.001, 1e6),
        turns=st.none() | positions,
    ),
    st.builds(
        Turn,
        **senders,
        task_id=identifiers,
        attempt=positive,
        run_id=st.integers(0, 1023),
        number=st.integers(0, 100),
        after=counts,
        workflow=identifiers,
        answers=st.lists(turn_answers, max_size=2),
    ),
    st.builds(Cancel, **senders, task_id=identifiers, attempt=positive, reason=text),
    st.builds(
        ExplorerHeartbeat,
        **senders,
        state=st.sampled_from(["starting", "ready", "syncing", "draining"]),
        slots=positive,
        running=st.lists(running_attempts, max_size=3),
        model_version=st.integers(-1, 100),
        workflows=st.lists(identifiers, max_size=3),
        tokens_generated=counts,
        sent_at=times,
        pace_s=st.none() | st.floats(0, 64),
    ),
    st.builds(SetPace, **senders, pace_s=st.floats(0, 64)),
    st.builds(ExplorerLeft, **senders, reason=text),
    st.builds(
        RolloutFinished,
        **senders,
        task_id=identifiers,
        attempt=positive,
        batch_id=identifiers,
        batch_type=batch_types,
        status=st.sampled_from(["completed", "partial", "failed"]),
        completed_runs=runs,
        total_runs=runs,
        metrics=st.lists(metrics, max_size=2),
        experience=st.none() | positions,
        error=st.none() | text,
        pieces=st.lists(st.builds(ExperiencePiece, samples=positive, position=positions), max_size=3),
        runs=st.lists(counts, max_size=3),
    ),
    st.builds(
        TrainerHeartbeat,
        **trainers,
        state=st.sampled_from(["starting", "ready", "training", "draining"]),
        step=counts,
        version=counts,
        master_address=text,
        master_port=ports,
    ),
    st.builds(
        StepTrained,
        **trainers,
        step=counts,
        version=counts,
        publish=st.booleans(),
        batch_id=st.none() | identifiers,
        metrics=metrics,
        checksum=text,
        master_address=text,
        master_port=ports,
        checkpoint=st.none() | text,
        skipped=skipped,
        rollback=rollbacks,
        dtype=st.none() | st.sampled_from(["float32", "bfloat16"]),
        source=st.none() | identifiers,
    ),
    st.builds(
        VersionWanted, model=identifiers, at_least=counts, version=st.none() | counts, rollback=rollbacks, sent_at=times
    ),
    st.builds(
        Superseded,
        service=st.sampled_from(["explorer", "trainer"]),
        name=identifiers,
        incarnation=identifiers,
        by=identifiers,
    ),
    st.builds(VersionRefused, **trainers, version=counts, reason=text, available=st.lists(counts, max_size=3)),
    st.builds(
        WeightsSynced,
        **senders,
        model=identifiers,
        version=counts,
        epoch=counts,
        ok=st.booleans(),
        error=st.none() | text,
        prepare_s=seconds,
        pause_s=seconds,
    ),
    st.builds(
        BatchRecord,
        batch_id=identifiers,
        batch_type=batch_types,
        state=st.sampled_from(BatchLifecycleState),
        sequence=counts,
        expected_task_count=st.none() | counts,
        manifest=st.lists(
            st.builds(ManifestEntry, task_id=identifiers, status=statuses, parts=st.lists(result_parts, max_size=3)),
            max_size=3,
        ),
        metrics=metrics,
        reason=st.none() | text,
        trace_links=st.lists(text, max_size=2),
    ),
    st.builds(
        StepBegun,
        **trainers,
        run=identifiers,
        step=positive,
        batch_id=identifiers,
        sequence=positive,
        next_offset=counts,
        seed=counts,
        groups=st.lists(step_groups, max_size=3),
        left_out=st.lists(
            st.builds(
                LeftOut,
                task_id=identifiers,
                reason=identifiers,
                samples=st.lists(counts, min_size=1, max_size=3),
                detail=text,
            ),
            max_size=2,
        ),
        replayed=st.lists(step_groups, max_size=2),
        demonstrations=st.lists(positions, max_size=2),
        preferences=st.lists(positions, max_size=2),
        examples=counts,
        skipped=st.none() | text,
        follows=st.none() | identifiers,
    ),
    st.builds(
        StepEnded,
        **trainers,
        run=identifiers,
        step=positive,
        batch_id=identifiers,
        follows=st.none() | identifiers,
        metrics=metrics,
    ),
    token_figures(),
    st.builds(Demonstration, example_id=identifiers, prompt=said, response=said, weight=st.floats(0, 1e6)),
    st.builds(
        Demonstration,
        example_id=identifiers,
        messages=st.lists(st.builds(Message, role=st.just("assistant"), content=text), min_size=1, max_size=2),
    ),
    st.builds(
        Preference,
        example_id=identifiers,
        messages=st.lists(st.builds(Message, role=st.just("user"), content=text), min_size=1, max_size=2),
        chosen=said.map(lambda words: f"{words}!"),
        rejected=said.map(lambda words: f"{words}?"),
    ),
    st.builds(BatchSkipped, batch_id=identifiers, sequence=positive, reason=text, client=identifiers),
    st.builds(
        ModelVersion,
        model=identifiers,
        version=counts,
        step=counts,
        method=st.sampled_from(["nccl", "gloo", "memory", "checkpoint"]),
        epoch=counts,
        members=st.lists(
            st.builds(Member, explorer=identifiers, incarnation=identifiers, rank=st.integers(1, 64)), max_size=3
        ),
        trainer=identifiers,
        trainer_incarnation=identifiers,
        master_address=text,
        master_port=ports,
        checksum=text,
        asked_by=people,
        metrics=metrics,
        pinned=st.booleans(),
        dtype=st.none() | st.sampled_from(["float32", "bfloat16"]),
        source=st.none() | identifiers,
    ),
    st.builds(
        PublishedVersion,
        model=identifiers,
        version=counts,
        step=counts,
        batch_id=st.none() | identifiers,
        method=st.sampled_from(["nccl", "gloo", "memory", "checkpoint"]),
        trainer=identifiers,
        trainer_incarnation=identifiers,
        checksum=text,
        checkpoint=st.none() | text,
        metrics=metrics,
        seconds=seconds,
        skipped=skipped,
        rollback=rollbacks,
        source=st.none() | identifiers,
    ),
)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    prompt = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6))
    response = draw(st.lists(st.integers(0, 2**31 - 1), max_size=20))
    n = len(response)
    starts = draw(st.lists(st.integers(0, n), unique=True, max_size=3).map(sorted))
    turns = draw(st.lists(st.integers(0, n - 1), unique=True, max_size=3).map(sorted)) if n else []
    rewards = st.lists(st.floats(width=32), min_size=len(turns), max_size=len(turns))
    told = draw(st.booleans())
    teacher = st.lists(st.floats(-50, 0, width=32), min_size=n, max_size=n)
    return Rollout(
        prompt_token_ids=prompt,
        response_token_ids=response,
        logprobs=draw(st.lists(st.floats(-50, 0, width=32), min_size=n, max_size=n)),
        mask=draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n)),
        reward=draw(st.floats(width=32)),
        versions=[(start, draw(counts)) for start in starts],
        finish_reason=draw(text),
        metrics=draw(metrics),
        turn_starts=turns if told else None,
        turn_rewards=draw(st.none() | rewards) if told else None,
        sampling=draw(st.none() | samplings),
        teacher_logprobs=draw(st.none() | teacher),
    )


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Rollout], ExperienceGroup]:
    """The samples, and the group that was built of them."""
    samples = draw(st.lists(rollouts(), min_size=1, max_size=5))
    if draw(st.booleans()):
        layers, k = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        samples = [
            dataclasses.replace(one, routes=np.arange(n * layers * k, dtype=np.uint8).reshape(n, layers, k))
            for one in samples
            for n in [len(one.prompt_token_ids) + len(one.response_token_ids)]
        ]
    fields: dict[str, Any] = {
        name: draw(identifiers) for name in ("task_id", "batch_id", "workflow", "model", "explorer", "incarnation")
    }
    return samples, build_group(samples, attempt=draw(positive), batch_type=draw(batch_types), **fields)


def small_group(samples: int = 2, *, response: int = 5) -> ExperienceGroup:
    """A group that is the same each time."""
    return build_group(
        [
            Rollout(
                prompt_token_ids=[1, 2, 3],
                response_token_ids=np.arange(response) + 10 * i,
                logprobs=(-np.arange(response) / 4).astype(np.float32),
                mask=None if i % 2 else np.arange(response) % 2 == 0,
                reward=float(i),
                versions=[(0, 7)],
                metrics={"accuracy": float(i)},
            )
            for i in range(samples)
        ],
        task_id="task-1",
        attempt=1,
        batch_id="batch-1",
        batch_type="train",
        workflow="math",
        model="policy",
        explorer="explorer-0",
        incarnation="life-1",
    )


def full_group() -> ExperienceGroup:
    """The same with every optional column; the second of its samples knows nothing of them that may be unknown."""
    first, second = small_group().samples()
    common: dict[str, Any] = {"reward": 0.5, "versions": [(0, 7)], "metrics": {"accuracy": 1.0}}
    return build_group(
        [
            Rollout(
                prompt_token_ids=first.tokens[:3],
                response_token_ids=first.tokens[3:],
                logprobs=first.logprobs,
                mask=first.mask,
                turn_starts=[0, 2, 4],
                turn_rewards=[0.25, float("nan"), -1.0],
                sampling=Sampling(temperature=0.75, top_p=0.5, top_k=20, min_p=0.125),
                teacher_logprobs=[-0.5, -0.25, -1.0, -2.0, 0.0],
                routes=np.arange(7 * 2 * 2, dtype=np.uint8).reshape(7, 2, 2),
                **common,
            ),
            Rollout(
                prompt_token_ids=second.tokens[:3],
                response_token_ids=second.tokens[3:],
                logprobs=second.logprobs,
                routes=np.arange(8 * 2 * 2, dtype=np.uint8)[::-1].reshape(8, 2, 2),
                **common,
            ),
        ],
        task_id="task-1",
        attempt=1,
        batch_id="batch-1",
        batch_type="train",
        workflow="math",
        model="policy",
        explorer="explorer-0",
        incarnation="life-1",
    )
