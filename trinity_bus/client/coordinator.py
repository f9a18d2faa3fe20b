"""``RolloutCoordinator``: submit, finalize and abort batches of the coordinator service, from any process.

::

    NEW --prepare()--> READY --shutdown()--> CLOSED --prepare()--> READY
                       (each again: nothing)

The batches themselves live in the coordinator service; this object remembers none of them. So several of these, in as
many processes, may submit, finalize and abort the same batches at once; all finalizers of a batch get equal results,
and one that was submitted by a process that has died can be finalized by another.

A batch is submitted in two steps: the coordinator is told of it and answers, then its tasks are sent. They are durable
when ``submit_batch`` returns. ``docs/clients.md`` has the rules for ids, order, and several clients.

==================================  ===================================================================================
what fails                          what happens
==================================  ===================================================================================
the client dies before the tasks    the batch stays PENDING, without some of its tasks. It takes no place in the order
are durable                         of training and holds up nobody; abort it (``trinity-bus abort``), its id is used
sending the tasks fails             ``SendError``; likewise
the client dies while it waits      nothing: the batch goes on, and anyone may finalize it
==================================  ===================================================================================
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Self

from schemas import SkipBatch, Task
from schemas.record import BatchType, Metrics
from schemas.topic import ROOM
from schemas.topics import EXPERIENCES, OPERATOR_COMMANDS
from trinity_bus.bus import Bus
from trinity_bus.client.connection import Connected, tell_unused
from trinity_bus.client.experiences import publish
from trinity_bus.client.tasks import BatchId, batch_name, send_tasks, tasks_of
from trinity_bus.config import Settings
from trinity_bus.errors import NotOwnerError, NotStartedError, RefusedError

log = logging.getLogger(__name__)


class RolloutCoordinator(Connected):
    """Batches, from submission to result. They go on when it is shut down. Arguments: see :class:`Connected`.

    Models are not used, with a line in the log: the mesh's explorers answer. ``operator``: whether it ends batches
    whoever they belong to, which takes the rights of an operator.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        rollout_model: object = None,
        auxiliary_models: object = None,
        *,
        bus: Bus | None = None,
        name: str = "rollout-coordinator",
        operator: bool = False,
    ) -> None:
        tell_unused(rollout_model, auxiliary_models)
        topics = [EXPERIENCES, OPERATOR_COMMANDS] if operator else [EXPERIENCES]
        super().__init__(settings, bus, name, topics)
        self._operator = operator
        self._submitting = asyncio.Lock()

    @classmethod
    def get_actor(
        cls,
        settings: Settings | None = None,
        models: object = None,
        auxiliary_models: object = None,
        *,
        bus: Bus | None = None,
    ) -> Self:
        """Return a client of its own, not yet prepared: there is no one actor to share, the state is in the service."""
        return cls(settings, models, auxiliary_models, bus=bus)

    _NOT_YET = "not prepared: await prepare() first."
    prepare = Connected.start
    shutdown = Connected.stop

    async def submit_batch(
        self, *, batch_id: BatchId, tasks: Sequence[Task], batch_type: BatchType, min_wait_num: int | None = None
    ) -> None:
        """Register a batch and send its tasks; they are durable when this returns.

        Without tasks the batch stays PENDING until it is finalized or aborted. ``batch_type`` counts, not that of the
        tasks. RefusedError: nothing was sent. SendError: it is registered, but not all tasks are known to be durable.
        """
        batch = batch_name(batch_id)
        connection = self.connection
        named = tasks_of(tasks, batch, batch_type, len(tasks) or None, producer=connection.channel.producer)
        if min_wait_num is not None and min_wait_num > len(tasks):
            log.warning("batch %s: min_wait_num %d is more than its %d tasks", batch, min_wait_num, len(tasks))
            min_wait_num = len(tasks) or None
        # One after the other: batches are full, and trained on, in the order in which they were submitted.
        async with self._submitting:
            await connection.submit(batch_id, batch_type, len(named), min_wait_num)
            await send_tasks(connection.producer, named)

    async def finalize_train_batch(self, batch_id: BatchId, *, timeout: float | None = None) -> dict[str, Any]:  # noqa: ASYNC109 - the coordinator keeps it
        """Wait until a train batch is FINALIZED, for ``timeout`` seconds, or what all attempts at one task may take.

        When the time is up first, a batch with a ``min_wait_num`` of which at least one task is finished is ended with
        what it has. Any other goes on, and can be finalized later: nothing of it is lost. Raises UnknownBatchError,
        RefusedError (it is of the other type, or open) or TimedOutError.
        """
        return await self._finalize(batch_id, "train", timeout)

    async def finalize_eval_batch(self, batch_id: BatchId, *, timeout: float | None = None) -> dict[str, Any]:  # noqa: ASYNC109 - the coordinator keeps it
        """Do the same for an eval batch, which never times out: when the time is up, it is ended with what it has."""
        return await self._finalize(batch_id, "eval", timeout)

    async def abort_batch(self, batch_id: BatchId, *, reason: str, keep_partial_results: bool = False) -> None:
        """Abort a batch. Nothing happens where it has ended or was never known. NotOwnerError: it is another's.

        With ``keep_partial_results`` its ABORTED record names the results that it has. They are never trained on.
        """
        await self.connection.abort(
            batch_id, reason, keep_partial_results=keep_partial_results, operator=self._operator
        )

    async def skip_batch(self, batch_id: BatchId, *, reason: str) -> None:
        """Have the trainer pass over a FINALIZED train batch that it has not trained on, as an operator."""
        if not self._operator:
            raise NotOwnerError(f"Batch {batch_id}: only an operator may skip it (operator=True).")
        reply = await self.connection.channel.ask(SkipBatch, batch_id=batch_name(batch_id), reason=reason)
        if reply.error is not None:
            raise RefusedError(reply.detail)

    async def process_experiences(self, payloads: list[bytes]) -> Metrics:
        """Check experiences, publish them, and contribute them: they join the train batch that is being filled.

        Each payload is one ``ExperienceGroup``, encoded, of a task that nobody has answered, or what a ``Scheduler``
        gave: that counts as a task of its own, once. SchemaError: one is none, and nothing was published. RefusedError:
        the coordinator has refused those that the message names; the others count.
        """
        if self._connection is None:
            raise NotStartedError("Experience pipeline is not initialized.")
        channel = self._connection.channel
        metrics, published = await publish(
            self._connection.producer,
            payloads,
            author=channel.producer,
            incarnation=channel.client,
            max_bytes=channel.settings.max_message_bytes(EXPERIENCES) - ROOM,
        )
        replies = await asyncio.gather(*map(channel.contribute, published))
        refused = [f"{reply.batch_id}: {reply.error}: {reply.detail}" for reply in replies if reply.error is not None]
        if refused:
            raise RefusedError(f"{len(refused)} of {len(replies)} contributions are refused: " + "; ".join(refused))
        return metrics

    async def _finalize(self, batch_id: BatchId, batch_type: BatchType, timeout_s: float | None) -> dict[str, Any]:
        result = await self.connection.finalize(batch_id, batch_type, timeout_s or None)
        if result.state == "aborted":
            log.warning("batch %s was aborted: nothing of it is trained on", batch_id)
        return {
            "batch_id": batch_id,
            "batch_type": result.batch_type,
            "finished_task_count": result.finished_task_count,
            "metrics": dict(result.metrics),
        }
