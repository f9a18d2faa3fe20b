"""A fake coordinator, with the explorers behind it, for clients that are tested without a broker.

It answers commands as the real one does, and does no work: a task has a result when the test says so. What it was asked
is public. It has no over-rollout by time, no retries, no order of training and no crash.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from schemas import (
    AbortBatch,
    BatchLifecycleState,
    BatchResult,
    CancelTasks,
    CommandError,
    CommandReply,
    Contribute,
    FinalizeBatch,
    ResultPart,
    SubmitBatch,
    Task,
    TaskResult,
    TaskStatus,
)
from schemas.topic import DLQ_DETAIL, DLQ_REASON, DLQ_TOPIC
from schemas.topics import COMMANDS, DEAD_LETTERS, EVENTS, EXPERIENCES, OPERATOR_COMMANDS, REPLIES, RESULTS, TASKS
from tests.support.fakes.experiences import make_group
from tests.support.fakes.log import FakeBus
from tests.support.fakes.mesh_records import coordinator_beat, task_result

State = BatchLifecycleState


@dataclass
class FakeBatch:
    submitted: SubmitBatch
    state: State = State.PENDING
    tasks: dict[str, Task] = field(default_factory=dict)
    results: dict[str, TaskResult] = field(default_factory=dict)
    waiting: list[FinalizeBatch] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.state in {State.FINALIZED, State.ABORTED}

    def result(self) -> BatchResult:
        prefix = "rollout" if self.submitted.batch_type == "train" else "eval/fake"
        finished = sum(1 for result in self.results.values() if result.status != "aborted")
        return BatchResult(
            batch_id=self.submitted.batch_id,
            batch_type=self.submitted.batch_type,
            state=self.state,
            finished_task_count=finished,
            metrics={f"{prefix}/finished_task_count": float(finished)},
        )


class FakeCoordinator:
    def __init__(self, bus: FakeBus) -> None:
        self.bus = bus
        self.batches: dict[str, FakeBatch] = {}
        self.commands: list[Any] = []
        self.tasks: dict[str, Task] = {}
        self.deaf = False
        """Commands are read and not answered."""
        self.contributed: dict[str, Contribute] = {}
        self.known_ids: set[str] = set()
        """Of what was contributed, those that it covers too."""
        self.replies: dict[str, CommandReply] = {}
        self.changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["FakeCoordinator"]:
        async with (
            self.bus.producer() as self._producer,
            self.bus.reader(COMMANDS, OPERATOR_COMMANDS, start="beginning") as commands,
            self.bus.reader(TASKS, start="beginning") as tasks,
        ):
            work = [asyncio.create_task(self._commands(commands)), asyncio.create_task(self._tasks(tasks))]
            work.append(asyncio.create_task(self._beat()))
            try:
                yield self
            finally:
                for task in work:
                    task.cancel()
                await asyncio.wait(work)
                for task in work:
                    assert task.cancelled(), task.exception()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(condition)

    async def finish(
        self, task_id: str, status: TaskStatus = "completed", *, runs: int = 1, parts: int = 1, error: str | None = None
    ) -> None:
        await self.until(lambda: task_id in self.tasks)
        task = self.tasks[task_id]
        total = task.repeat_times or 1
        positions = []
        if task.batch_type == "train" and status in {"completed", "partial"}:
            for _ in range(parts):
                group = make_group(task_id=task_id, batch_id=task.batch_id or "")
                positions.append(await (await self._producer.send(EXPERIENCES, task_id, group)))
        good = {"completed": total, "partial": runs}.get(status, 0)
        result = task_result(
            task_id,
            batch_id=task.batch_id or "",
            batch_type=task.batch_type,
            status=status,
            completed_runs=good,
            total_runs=total,
            parts=[ResultPart(attempt=i + 1, samples=4, position=p) for i, p in enumerate(positions)],
            metrics={"reward": 1.0} if good else {},
            error=error,
        )
        batch = self.batches[result.batch_id]
        batch.results[task_id] = result
        await self._producer.send(RESULTS, task_id, result)
        if len(batch.results) == batch.submitted.expected_task_count and not batch.ended:
            await self._end(batch, State.FINALIZED)

    async def refuse(self, task_id: str, reason: str) -> None:
        await self.until(lambda: task_id in self.tasks)
        await self._refuse_now(task_id, reason)

    async def say(self, event: Any, sender: str) -> None:
        topic = next(topic for topic in EVENTS if type(event) in topic.records)
        await self._producer.send(topic, sender, event)

    async def _beat(self) -> None:
        limits = {"max_timeout_s": 30.0, "attempts_per_task": 2, "dynamic_timeout_s": 12.0, "wait_after_min_s": 0.05}
        while True:
            await self.say(coordinator_beat(coordinator="fake", incarnation="fake", **limits), "fake")
            await asyncio.sleep(0.05)

    async def _tasks(self, reader: Any) -> None:
        while True:
            for received in await reader.batch(10):
                task: Task = received.record
                self.tasks[task.task_id] = task
                batch = self.batches.get(task.batch_id or "")
                if batch is None or batch.ended:
                    await self._refuse_now(task.task_id, "batch_closed")
                    continue
                batch.tasks[task.task_id] = task
                batch.state = State.RUNNING
                async with self.changed:
                    self.changed.notify_all()

    async def _refuse_now(self, task_id: str, reason: str) -> None:
        headers = [(DLQ_REASON, reason.encode()), (DLQ_DETAIL, b"says the fake"), (DLQ_TOPIC, TASKS.name.encode())]
        await self._producer.send_raw(DEAD_LETTERS, task_id, b"", headers=headers)

    async def _commands(self, reader: Any) -> None:
        while True:
            for received in await reader.batch(10):
                command = received.record
                self.commands.append(command)
                if not self.deaf:
                    if command.command_id in self.replies:
                        await self._producer.send(REPLIES, command.client, self.replies[command.command_id])
                    else:
                        await self._carry_out(command)
                async with self.changed:
                    self.changed.notify_all()

    async def _carry_out(self, command: Any) -> None:
        if isinstance(command, Contribute):
            ids = [command.task_id, *(command.covers or ())]
            known = not self.known_ids.isdisjoint(ids)
            if not known:
                self.known_ids.update(ids)
                self.contributed[command.task_id] = command
            await self._reply(command, "known_task" if known else None)
            return
        batch = self.batches.get(command.batch_id)
        match command:
            case SubmitBatch():
                if batch is not None:
                    await self._reply(command, "batch_closed" if batch.ended else "already_active")
                    return
                self.batches[command.batch_id] = FakeBatch(command)
            case AbortBatch():
                if batch is not None and not batch.ended:
                    await self._cut_off(batch, command.reason, partial=False)
                    await self._end(batch, State.ABORTED)
            case CancelTasks():
                if batch is None:
                    await self._reply(command, "unknown_batch")
                    return
                await self._cut_off(batch, command.reason, partial=command.return_partial_tasks)
            case FinalizeBatch():
                await self._finalize(command, batch)
                return
        await self._reply(command)

    async def _finalize(self, command: FinalizeBatch, batch: FakeBatch | None) -> None:
        if batch is None:
            await self._reply(command, "unknown_batch")
        elif batch.submitted.batch_type != command.batch_type:
            await self._reply(command, "wrong_type")
        elif batch.ended:
            await self._reply(command, result=batch.result())
        elif batch.submitted.expected_task_count == 0:
            await self._end(batch, State.FINALIZED)
            await self._reply(command, result=batch.result())
        elif command.timeout_s is not None and command.timeout_s < 1:
            await self._reply(command, "timeout")
        else:
            batch.waiting.append(command)

    async def _cut_off(self, batch: FakeBatch, reason: str, *, partial: bool) -> None:
        for task_id in [task_id for task_id in batch.tasks if task_id not in batch.results]:
            done = partial and (batch.tasks[task_id].repeat_times or 1) > 1
            await self.finish(task_id, "partial" if done else "aborted", error=reason)

    async def _end(self, batch: FakeBatch, state: State) -> None:
        batch.state = state
        for command in batch.waiting:
            await self._reply(command, result=batch.result())
        batch.waiting.clear()

    async def _reply(self, command: Any, error: CommandError | None = None, result: BatchResult | None = None) -> None:
        reply = CommandReply(
            client=command.client,
            command_id=command.command_id,
            batch_id=command.task_id if isinstance(command, Contribute) else command.batch_id,
            error=error,
            detail="" if error is None else "says the fake",
            result=result,
        )
        self.replies[command.command_id] = reply
        await self._producer.send(REPLIES, command.client, reply)
