"""``RolloutCoordinator``: submit, finalize and abort batches of the coordinator service, from any process.

::

    NEW --prepare()--> READY --shutdown()--> CLOSED --prepare()--> READY
                       (each again: nothing)

The batches themselves live in the coordinator service; this object remembers none of them. So several of these, in as
many processes, may submit, finalize and abort the same batches at once; all finalizers of a batch get equal results,
and one that was submitted by a process that has died can be finalized by another.

A batch is submitted in two steps: the coordinator is told of it and answers, then its tasks are sent. They are durable
when ``submit_batch`` returns.

==================================  ===================================================================================
what fails                          what happens
==================================  ===================================================================================
the client dies before the tasks    the batch stays PENDING, without some of its tasks. It takes no place in the order
are durable                         of training and holds up nobody; abort it (``trinity-bus abort``), its id is used
sending the tasks fails             ``SendError``; likewise
the client dies while it waits      nothing: the batch goes on, and anyone may finalize it
the coordinator dies                its successor has the batches, and answers
no coordinator answers              ``NoCoordinatorError``
==================================  ===================================================================================
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Self

from schemas import CommandReply, Task
from schemas.record import BatchType, Metrics
from schemas.topic import ROOM
from schemas.topics import EXPERIENCES, OPERATOR_COMMANDS
from trinity_bus.bus import Bus
from trinity_bus.client.connection import Connected, tell_unused
from trinity_bus.client.errors import NO_RESULT, check_reply
from trinity_bus.client.experiences import publish
from trinity_bus.client.ids import BatchId, batch_name, tasks_of
from trinity_bus.client.tasks import send_tasks
from trinity_bus.config import Settings
from trinity_bus.errors import NotOwnerError, NotStartedError, RefusedError

log = logging.getLogger(__name__)


class RolloutCoordinator(Connected):
    """Batches, from submission to result. They go on when it is shut down.

    Args:
        settings: Like ``bus`` and ``name``, as for every client: see :class:`Connected`.
        rollout_model: Not used, with a line in the log, like ``auxiliary_models``: the mesh's explorers answer.
        operator: Whether it ends batches whoever they belong to, which takes the rights of an operator.
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

        Args:
            batch_id: Not used before; train batches are best numbered.
            tasks: Their ids are unique within the batch. On the log they are called ``<batch id>#<task id>``. None: the
                batch stays PENDING until it is finalized or aborted.
            batch_type: What the batch is for; that of the tasks is not looked at.
            min_wait_num: Finished tasks with which the batch may end, once ``wait_after_min_s`` has passed too. Absent:
                ``over_rollout_ratio`` decides. An eval batch waits for all, whatever is said here.

        Raises:
            RefusedError: ``Batch X is already active.``; or X has ended and its id is used up, is too large, cannot be
                a batch id, or two tasks have one id. Nothing was sent.
            SendError: The batch is registered, but not all tasks are known to be durable: abort it.
        """
        batch = batch_name(batch_id)
        connection = self._connected()
        named = tasks_of(tasks, batch, batch_type, len(tasks) or None, producer=connection.channel.producer)
        if min_wait_num is not None and min_wait_num > len(tasks):
            log.warning("batch %s: min_wait_num %d is more than its %d tasks", batch, min_wait_num, len(tasks))
            min_wait_num = len(tasks) or None
        # One after the other: batches are full, and trained on, in the order in which they were submitted.
        async with self._submitting:
            reply = await connection.channel.submit(
                batch, batch_type=batch_type, expected_task_count=len(named), min_wait_num=min_wait_num
            )
            check_reply(reply, batch_id)
            await send_tasks(connection.producer, named)

    async def finalize_train_batch(self, batch_id: BatchId, *, timeout: float | None = None) -> dict[str, Any]:  # noqa: ASYNC109 - the coordinator keeps it
        """Wait until a train batch is FINALIZED.

        When the time is up first, a batch with a ``min_wait_num`` of which at least one task is finished is ended with
        what it has. Any other goes on, and can be finalized later: nothing of it is lost.

        ``timeout``: seconds; absent, or 0: what all attempts at one task may take together.

        Returns:
            ``batch_id`` as it was given, ``batch_type``, ``finished_task_count``, and ``metrics``: ``rollout/...``. Of
            an aborted batch, what it came to.

        Raises:
            UnknownBatchError: ``Batch X is not registered.``; or it ended so long ago that its result is forgotten.
            RefusedError: ``Batch X is eval, expected train.``, at once; or it is open (see ``schemas.batch``).
            TimedOutError: ``Timeout waiting for batch X.``
        """
        return await self._finalize(batch_id, "train", timeout)

    async def finalize_eval_batch(self, batch_id: BatchId, *, timeout: float | None = None) -> dict[str, Any]:  # noqa: ASYNC109 - the coordinator keeps it
        """Wait until an eval batch is FINALIZED; when the time is up, it is ended with what it has.

        Arguments, result and errors are those of ``finalize_train_batch``, but that it never times out; ``metrics`` are
        ``eval/<batch id after the first slash>/...``.
        """
        return await self._finalize(batch_id, "eval", timeout)

    async def abort_batch(self, batch_id: BatchId, *, reason: str, keep_partial_results: bool = False) -> None:
        """Abort a batch. Nothing happens where it has ended or was never known.

        With ``keep_partial_results`` its ABORTED record, which has the reason, names the results that it has, those of
        unfinished tasks too. They are never trained on.

        Raises:
            NotOwnerError: It is another producer's.
        """
        reply = await self._connected().channel.abort(
            batch_name(batch_id), operator=self._operator, reason=reason, keep_partial_results=keep_partial_results
        )
        check_reply(reply, batch_id)

    async def skip_batch(self, batch_id: BatchId, *, reason: str) -> None:
        """Have the trainer pass over a FINALIZED train batch that it has not trained on, as an operator.

        The reason stands in the lineage of every version that follows.

        Raises:
            NotOwnerError: This object was not made with ``operator``.
            RefusedError: It cannot be passed over; the message says why.
        """
        if not self._operator:
            raise NotOwnerError(f"Batch {batch_id}: only an operator may skip it (operator=True).")
        reply = await self._connected().channel.skip(batch_name(batch_id), reason=reason)
        if reply.error is not None:
            raise RefusedError(reply.detail)

    async def process_experiences(self, payloads: list[bytes]) -> Metrics:
        """Check experiences, publish them, and contribute them: they join the train batch that is being filled.

        Args:
            payloads: Each one ``schemas.ExperienceGroup``, encoded; each of a task that nobody has answered, or what a
                ``Scheduler`` gave: that is not trained on otherwise, and counts as a task of its own, once. They are
                published in the name of this client.

        Returns:
            ``experience_pipeline/experience_count`` and its times; empty for no payloads. All of them count when this
            returns, unless their batch gets its place in training too late for their versions.

        Raises:
            NotStartedError: ``prepare`` has not been called.
            SchemaError: A payload is no experience group; nothing was published.
            SendError: Not all are known to be durable.
            RefusedError: The coordinator has refused some; the others count. The message names each with the reason.
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
        reply: CommandReply = await self._connected().channel.finalize(
            batch_name(batch_id), batch_type=batch_type, timeout_s=timeout_s or None
        )
        check_reply(reply, batch_id, batch_type)
        if reply.result is None:
            raise RefusedError(f"Batch {batch_id}: {NO_RESULT}")
        if reply.result.state == "aborted":
            log.warning("batch %s was aborted: nothing of it is trained on", batch_id)
        return {
            "batch_id": batch_id,
            "batch_type": reply.result.batch_type,
            "finished_task_count": reply.result.finished_task_count,
            "metrics": dict(reply.result.metrics),
        }
