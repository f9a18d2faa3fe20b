"""SIMULATED clients: several at once, who submit, fill, finalize, abort and cancel batches, also those of others."""

import random
from collections import deque
from collections.abc import Sequence

from schemas import (
    AbortBatch,
    BatchLifecycleState,
    BatchRecord,
    CancelTasks,
    Contribute,
    FinalizeBatch,
    SubmitBatch,
    Task,
)
from schemas.record import BatchType
from tests.support.simulation.workers import stored
from trinity_bus.coordination import Request

WORKFLOWS = ("math", "rare", "nobody-has-it")
RECENT = 12  # batches and commands that clients still think of


class Clients:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._tasks = 0
        self._batches = 0
        self._commands = 0
        self._made = 0
        self._ids: deque[str] = deque(maxlen=RECENT)  # of batches that somebody has named lately
        self._at_work: dict[str, BatchType] = {}  # batches that are handed out or wait for their turn
        self._sent: deque[Request] = deque(maxlen=RECENT)
        self._owed: deque[Task] = deque()  # tasks of submitted batches that are yet to be sent
        self.repeat_times: Sequence[int | None] = (None, None, None, 1, 3, 5)

    def task(self) -> Task:
        """The next task: of a submitted batch, of a batch that it names, of none, or one that came before."""
        draw = self._rng.random()
        if self._owed and draw < 0.6:
            return self._owed.popleft()
        if draw < 0.72:
            batch_id, batch_type, size = f"mine-{self._rng.randint(0, self._tasks // 4)}", "train", 3
        elif draw < 0.78:
            batch_id, batch_type, size = f"{self._rng.randint(0, self._tasks // 4)}/held-out", "eval", 2
        elif draw < 0.8 and self._ids:
            batch_id, batch_type, size = self._rng.choice(self._ids), self._rng.choice(["train", "eval"]), None
        else:
            return self._task(None, self._rng.choices(["train", "eval"], [9, 1])[0])  # type: ignore[arg-type]
        return self._task(batch_id, batch_type, size)  # type: ignore[arg-type]

    def _task(self, batch_id: str | None, batch_type: BatchType, size: int | None = None) -> Task:
        self._tasks += 1
        # Now and then an id that was used lately.
        number = self._tasks if self._rng.random() > 0.03 else self._rng.randint(max(1, self._tasks - 50), self._tasks)
        return Task(
            task_id=f"task-{number}",
            workflow=self._rng.choices(WORKFLOWS, [40, 6, 1])[0],
            prompt=f"1 + {number % 7}",
            batch_id=batch_id,
            batch_type=batch_type,
            batch_size=size,
            repeat_times=self._rng.choice(self.repeat_times),
            timeout_s=self._rng.choice([None, 5.0]),
            pool=self._rng.choices([None, "judge"], [12, 1])[0],
        )

    def submit(self) -> SubmitBatch:
        self._batches += 1
        batch_type: BatchType = "eval" if self._rng.random() < 0.25 else "train"
        batch_id = f"{self._batches}/{batch_type}"
        if self._ids and self._rng.random() < 0.1:
            batch_id = self._rng.choice(self._ids)
        expected = self._rng.choice([0, 1, 2, 4, 6, 6, None])
        self._ids.append(batch_id)
        sent = expected if expected is not None else self._rng.randint(1, 5)
        lacking = self._rng.choice([0, 0, 0, 1])
        for _ in range(max(0, sent - lacking)):
            self._owed.append(self._task(batch_id, batch_type))
        return self._send(
            SubmitBatch(
                **self._names(batch_id),
                batch_type=batch_type,
                expected_task_count=expected,
                min_wait_num=self._rng.choice([None, None, 1, 3]),
            )
        )

    def finalize(self) -> FinalizeBatch:
        batch_id = self._some_batch()
        by_name = "eval" if batch_id.startswith("eval") or batch_id.endswith(("eval", "held-out")) else "train"
        right = self._at_work.get(batch_id, by_name)
        wrong = "train" if right == "eval" else "eval"
        return self._send(
            FinalizeBatch(
                **self._names(batch_id),
                batch_type=self._rng.choices([right, wrong], [9, 1])[0],
                timeout_s=self._rng.choice([None, None, 0.0, 3.0, 40.0]),
            )
        )

    def abort(self, batch_id: str | None = None) -> AbortBatch:
        keep = self._rng.random() < 0.5
        batch_id = batch_id or self._some_batch()
        return self._send(AbortBatch(**self._names(batch_id), reason="no longer wanted", keep_partial_results=keep))

    def cancel(self) -> CancelTasks:
        return self._send(
            CancelTasks(
                **self._names(self._some_batch()),
                reason="enough",
                return_partial_tasks=self._rng.random() < 0.5,
                restart_runners=self._rng.random() < 0.5,
            )
        )

    def contribute(self, offset: int, version: int) -> Contribute:
        """Experiences that it has made, of a task of its own; sometimes of one that it has contributed before."""
        self._made += self._rng.random() > 0.1
        names = self._names("")
        del names["batch_id"]
        pieces = stored(self._rng, self._rng.choice([1, 2]), offset)
        task_id = f"made-{self._made}"
        return self._send(Contribute(**names, task_id=task_id, pieces=pieces, version_min=version, version_max=version))

    def resend(self) -> Request | None:
        """A command that was sent before, because its reply was not seen."""
        return self._rng.choice(self._sent) if self._sent else None

    def noticed(self, batch: BatchRecord) -> None:
        if batch.state is BatchLifecycleState.PENDING:
            self._ids.append(batch.batch_id)
        if batch.state in (BatchLifecycleState.RUNNING, BatchLifecycleState.FINALIZING):
            self._at_work[batch.batch_id] = batch.batch_type
        else:
            self._at_work.pop(batch.batch_id, None)

    def _some_batch(self) -> str:
        if self._at_work and self._rng.random() < 0.4:
            return self._rng.choice(list(self._at_work))
        if not self._ids or self._rng.random() < 0.05:
            return f"unheard-of-{self._commands}"
        return self._rng.choice(self._ids)

    def _names(self, batch_id: str) -> dict[str, str]:
        self._commands += 1
        return {
            "client": f"client-{self._rng.randrange(3)}",
            "command_id": f"command-{self._commands}",
            "batch_id": batch_id,
        }

    def _send[R: Request](self, command: R) -> R:
        self._sent.append(command)
        return command
