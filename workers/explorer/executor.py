"""The attempts that an explorer works on: several at once, each with a limit, each answered once.

::

    order --> WAITING for the version it asks for --> RUNNING its workflow, as soon as a runner has room
                                                                       |
         cancelled: no answer (it would not count) <-------------------+--> raised, or out of time: FAILED
                                                                       |
                                            experiences durable <------+ (train batches)
                                                    |                  |
                                                    +----------------> RolloutFinished durable: ANSWERED

The result is sent only when the experiences are durable, so nobody ever sees a result whose experiences cannot be read.
An attempt that is out of time, or cancelled, ends at once, whatever its workflow does.

Failures: what a workflow raises is the attempt's typed failure, and so is what cannot be trained on or cannot be sent.
A broken connection to the log is the explorer's own end, told through ``fatal``.
"""

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from schemas import (
    Cancel,
    Dispatch,
    ExperienceGroup,
    ExperiencePiece,
    Position,
    RolloutFinished,
    RunningAttempt,
    SetPace,
    Superseded,
)
from schemas.errors import SchemaError
from schemas.groups.pieces import split_group
from schemas.groups.trainable import Bounds
from schemas.topics import EXPERIENCES, EXPLORER_EVENTS
from trinity_bus import awake
from trinity_bus.bus import Producer
from trinity_bus.config import ExplorerSettings
from trinity_bus.errors import BusError, RecordTooLargeError, TrinityError
from trinity_bus.rollout.answer import decode_answer
from trinity_bus.runners.messages import RunDone
from trinity_bus.runners.partials import NOTHING_EARLIER, EarlierResponses, ResponseDrawer
from trinity_bus.runners.service import AttemptKey, Runners, WorkflowRaisedError, key_of
from trinity_bus.runtime.service import unless_small
from trinity_bus.telemetry import as_current, parent_context, traceparent
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import ATTEMPTS, ROLLOUT_DURATION, TOKENS, Occupancy, Unit
from workers.explorer import outcome
from workers.explorer.outcome import ExplorerIdentity
from workers.explorer.turns import TurnKeeper
from workers.explorer.weights import ServedVersion

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("workers.explorer")


_TYPE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")

IDLE = "idle"
WAITING = "waiting_for_version"
ROLLING_OUT = "rolling_out"
PUBLISHING = "publishing"


REMEMBERED = 65_536  # attempts that are remembered, to know an order that comes twice

type Order = Dispatch | Cancel | SetPace | Superseded


class OrderFilter:
    """Which records of a lane are orders to this very incarnation of this explorer, each once. Pure.

    A partition of ``rollouts`` carries the lanes of several explorers, and each lane the orders to all incarnations.
    """

    def __init__(self, explorer: str, incarnation: str) -> None:
        self._to = explorer, incarnation
        self._seen: OrderedDict[AttemptKey, None] = OrderedDict()

    def handle(self, record: Any) -> Order | None:
        """Return the order, if it is to be carried out; None for other records, orders to others, and a repetition."""
        if isinstance(record, Superseded):
            return record if (record.service, record.name, record.incarnation) == ("explorer", *self._to) else None
        if not isinstance(record, Dispatch | Cancel | SetPace) or (record.explorer, record.incarnation) != self._to:
            return None
        if isinstance(record, Dispatch):
            attempt = key_of(record)
            if attempt in self._seen:
                return None
            self._seen[attempt] = None
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
        return record


class AttemptTimeoutError(TrinityError, TimeoutError):
    pass


@dataclass(eq=False)
class RolloutExecutor:
    """Runs attempts.

    A group of experiences of more than ``max_group_bytes`` is split over several records. ``record_content``: whether
    spans may tell what workflows say in their errors.
    """

    runners: Runners
    producer: Producer
    who: ExplorerIdentity
    _: KW_ONLY
    bounds: Bounds
    served: ServedVersion
    slots: Occupancy
    max_group_bytes: int
    turns: TurnKeeper
    settings: ExplorerSettings
    record_content: bool = False

    def __post_init__(self) -> None:
        self._running: dict[AttemptKey, asyncio.Task[None]] = {}
        self._drawers: dict[AttemptKey, ResponseDrawer] = {}
        self.fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # raises what ends the explorer

    @property
    def running(self) -> list[RunningAttempt]:
        return [
            RunningAttempt(task_id=task_id, attempt=attempt, turns=self.turns.first((task_id, attempt)))
            for task_id, attempt in self._running
        ]

    def start(self, order: Dispatch, raw: bytes, parent: str | None) -> None:
        """Begin an attempt, which is not known yet.

        ``raw`` is the order as it came off the log; ``parent`` its trace context.
        """
        attempt = key_of(order)
        task = asyncio.create_task(self._run_attempt(order, raw, parent), name=f"attempt {attempt}")
        self._running[attempt] = task
        task.add_done_callback(lambda ended: self._ended(attempt, ended))

    def cancel(self, order: Cancel) -> None:
        task = self._running.get(key_of(order))
        if task is not None and not task.cancelling():
            _log.info("task %s attempt %d is cancelled: %s", order.task_id, order.attempt, order.reason)
            if order.restart_runner:
                self.runners.stop_at_once(key_of(order))
            task.cancel()

    async def finish(self, limit_s: float) -> None:
        """Let what runs finish for ``limit_s`` seconds."""
        if self._running and limit_s > 0:
            await awake.wait(list(self._running.values()), limit_s)

    @property
    def drawers(self) -> list[ResponseDrawer]:
        """Those of the attempts that run."""
        return list(self._drawers.values())

    async def checkpoint(self) -> bool:
        """Write what is drawn of responses and not written; return whether there was anything."""
        return any(await asyncio.gather(*(drawer.checkpoint() for drawer in self.drawers)))

    async def cancel_all(self) -> None:
        rest = list(self._running.values())
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)

    def _ended(self, attempt: AttemptKey, task: asyncio.Task[None]) -> None:
        self._running.pop(attempt, None)
        self.turns.forget(attempt)
        self._drawers.pop(attempt, None)
        if not task.cancelled() and (error := task.exception()) is not None and not self.fatal.done():
            self.fatal.set_exception(error)

    async def _run_attempt(self, order: Dispatch, raw: bytes, parent: str | None) -> None:
        with (
            self.slots.unit(WAITING) as slot,
            as_current(
                _tracer.start_span(
                    f"rollout {order.task.workflow}",
                    context=parent_context(parent),
                    kind=SpanKind.CONSUMER,
                    attributes={
                        names.RL_TASK_ID: order.task.task_id,
                        names.RL_ATTEMPT: order.attempt,
                        names.RL_BATCH_ID: order.batch_id,
                        names.RL_BATCH_TYPE: order.batch_type,
                        names.RL_WORKFLOW: order.task.workflow,
                        names.RL_EXPLORER: self.who.explorer,
                    },
                )
            ) as span,
        ):
            began = time.perf_counter()
            broke: Exception | None = None
            try:
                yielded = await self._roll_out(order, raw, slot)
                slot.move(PUBLISHING)
                result = await self._publish(order, yielded, began)
            except asyncio.CancelledError:
                self._count(order, "cancelled")
                raise
            # Anything that a workflow raises is this attempt's failure, and nobody else's.
            except Exception as error:
                # Without its log the explorer ends.
                if isinstance(error, BusError) and not isinstance(error, RecordTooLargeError):
                    raise
                _log.warning("task %s attempt %d failed: %s", order.task.task_id, order.attempt, error)
                broke = error
                result = outcome.failed(order, error, self.who, seconds=time.perf_counter() - began)
            result, durable = await self._answer(order, result)
            span.set_attribute(names.RL_SAMPLES, result.samples)
            span.set_attribute(names.RL_MODEL_VERSION, result.version_max)
            span.set_attribute(names.RL_TASK_STATUS, result.status)
            kind = None
            if result.status == "failed":
                kind = _kind(result.error or "")
                span.set_attribute(names.ERROR_TYPE, kind)
                # What a workflow raises may quote what the model has answered.
                shown = self.record_content or not isinstance(broke, WorkflowRaisedError)
                span.set_status(Status(StatusCode.ERROR, result.error if shown else None))
            self._count(order, result.status, kind)
            ROLLOUT_DURATION.record(result.seconds, {names.RL_WORKFLOW: order.task.workflow})
            await durable

    async def _answer(self, order: Dispatch, result: RolloutFinished) -> tuple[RolloutFinished, Awaitable[Position]]:
        # A result that no record can hold is a failure, and that is sent instead.
        try:
            return result, await self.producer.send(EXPLORER_EVENTS, self.who.explorer, result)
        except (SchemaError, RecordTooLargeError) as error:
            _log.warning("the result of task %s attempt %d cannot be sent: %s", result.task_id, result.attempt, error)
            failure = outcome.failed(order, outcome.UnsendableResultError(str(error)), self.who, seconds=result.seconds)
            return failure, await self.producer.send(EXPLORER_EVENTS, self.who.explorer, failure)

    def _count(self, order: Dispatch, status: str, error_type: str | None = None) -> None:
        attributes = {names.RL_ATTEMPT_STATUS: status, names.RL_WORKFLOW: order.task.workflow}
        ATTEMPTS.add(1, attributes if error_type is None else {**attributes, names.ERROR_TYPE: error_type})

    async def _roll_out(self, order: Dispatch, raw: bytes, slot: Unit) -> RunDone:
        try:
            async with awake.timeout(order.timeout_s) as limit:
                await self.served.wait_for(order.min_version)
                slot.move(ROLLING_OUT)
                done = await self.turns.done(order)
                given = done.partials, done.answers, self.bounds, order.min_version
                # There may be thousands.
                earlier = await asyncio.to_thread(EarlierResponses, *given) if done.partials else NOTHING_EARLIER
                write = partial(self.turns.keep_partial, order)
                trained = order.batch_type == "train"
                drawer = ResponseDrawer(order.attempt, earlier, write, self.settings, trained=trained)
                self._drawers[key_of(order)] = drawer

                async def keep(turn: bytes) -> None:
                    drawer.forget((await self.turns.keep(order, turn)).answers)

                return await self.runners.roll_out(
                    order, raw, traceparent(), keep=keep, turns=done.turns, draw=drawer.draw
                )
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise AttemptTimeoutError(f"no result within {order.timeout_s:g} s") from error

    async def _publish(self, order: Dispatch, yielded: RunDone, began: float) -> RolloutFinished:
        # Only when experiences are durable is there a result.
        group = decode_answer(order, yielded.group, self.who.model)
        position, pieces = None, []
        if order.batch_type == "train":
            await unless_small(len(yielded.group), outcome.check_trainable, group, self.bounds)
            if len(yielded.group) <= self.max_group_bytes:
                sent = await self.producer.send(EXPERIENCES, group.task_id, group, encoded=yielded.group)
                position = await sent
            else:
                pieces = await self._publish_pieces(split_group(group, self.max_group_bytes))
        result = outcome.finished(
            order,
            group,
            experience=position,
            pieces=pieces,
            seconds=time.perf_counter() - began,
            error=yielded.error,
        )
        for kind, count in (("prompt", result.prompt_tokens), ("response", result.response_tokens)):
            TOKENS.add(count, {names.RL_WORKFLOW: order.task.workflow, names.RL_TOKEN_KIND: kind})
        return result

    async def _publish_pieces(self, groups: list[ExperienceGroup]) -> list[ExperiencePiece]:
        # Whoever dies amid them has told nobody where they lie.
        sent = [await self.producer.send(EXPERIENCES, group.task_id, group) for group in groups]
        positions = await asyncio.gather(*sent)
        return [
            ExperiencePiece(samples=len(group), position=position)
            for group, position in zip(groups, positions, strict=True)
        ]


def _kind(error: str) -> str:
    # A workflow may claim any, and each would be a metric of its own.
    kind = error.partition(":")[0]
    return kind if _TYPE_NAME.fullmatch(kind) else WorkflowRaisedError.__name__
