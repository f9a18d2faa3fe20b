"""The topic ``token-figures``, as one trainer writes it: training neither waits for it nor fails by it.

::

    a step's figures --records_of--> a record for each group --offer--> a queue of MAX_WAITING bytes
      full                           --> the record is left out, and counted
      they fit no record: a defect   --> those of the step are left out, and counted as one; told with its place
    the queue --a task, a producer of its own--> token-figures
      the producer fails             --> what waits is left out, and counted; said once; another one for what comes then
      one record is too large        --> it is left out, and counted
      a defect                       --> likewise, told with its place
    the end of the trainer, in order --> what waits is written, for DRAIN_S; otherwise it is left out

A producer of its own, because one that has failed is of no more use, and the trainer's other records are needed.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, Self

from schemas import Position, StepBegun, TokenFigures
from schemas.token_figures import FLOAT16
from schemas.topics import TOKEN_FIGURES
from trinity_bus import awake
from trinity_bus.bus import Bus, Producer
from trinity_bus.errors import BusError, EncodeError, RecordTooLargeError
from trinity_bus.telemetry.metrics import TOKEN_FIGURES_DROPPED
from trinity_bus.training.steps.choice import origins
from trinity_bus.training.steps.token_figures import SampleFigures

log = logging.getLogger(__name__)

# Bytes that wait to be written
MAX_WAITING: Final = 64 << 20
DRAIN_S: Final = 5.0
# Of columns in one record, which any cluster takes; a sample that is longer by itself has a record by itself.
RECORD_BYTES: Final = 768 << 10
# Records whose delivery is awaited together
_AT_ONCE: Final = 16

# A task, the record of its group, the sample's number in that, and what was kept of it
type Placed = tuple[str, Position, int, SampleFigures]


def records_of(begun: StepBegun, figures: Sequence[SampleFigures]) -> Iterator[TokenFigures]:
    """Group by group, in the order of the step. Pure."""
    places = origins(begun)
    placed: list[Placed] = [(*places[one.number], one) for one in sorted(figures, key=lambda one: one.number)]
    for (task_id, position), group in groupby(placed, lambda one: one[:2]):
        for part in _parts(group):
            yield TokenFigures(
                trainer=begun.trainer,
                run=begun.run,
                step=begun.step,
                task_id=task_id,
                position=position,
                samples=[number for _, _, number, _ in part],
                lengths=[len(one.gaps) // FLOAT16.itemsize for *_, one in part],
                updates_before=[one.updates_before for *_, one in part],
                gaps=b"".join(one.gaps for *_, one in part),
                entropies=b"".join(one.entropies for *_, one in part),
            )


def _parts(group: Iterator[Placed]) -> Iterator[list[Placed]]:
    part: list[Placed] = []
    size = 0
    for one in group:
        own = 2 * len(one[3].gaps)
        if part and size + own > RECORD_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += own
    if part:
        yield part


class FigureLog:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._waiting: deque[TokenFigures] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[None] | None = None
        self._is_told = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if self._task is None:
            return
        try:
            if kind is None:
                with contextlib.suppress(TimeoutError):
                    async with awake.timeout(DRAIN_S):
                        await self._empty.wait()
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._forget()

    def offer(self, begun: StepBegun, figures: Sequence[SampleFigures]) -> None:
        # Raises nothing.
        try:
            records = list(records_of(begun, figures))
        # No figure is worth a step, which is trained by now and has yet to be told.
        except Exception:
            log.exception("figures by token of step %d are not written: a defect", begun.step)
            _drop(1)
            return
        for record in records:
            if self._size + _size(record) > MAX_WAITING:
                _drop(1)
                continue
            self._waiting.append(record)
            self._size += _size(record)
        if self._waiting:
            self._empty.clear()
            self._news.set()
            if self._task is None:
                self._task = asyncio.create_task(self._write(), name="token figures")

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            try:
                async with self._bus.producer() as producer:
                    while True:
                        await self._news.wait()
                        await self._send(producer)
            except BusError as error:
                if not self._is_told:
                    log.warning("figures by token are not written, and training goes on: %s", error)
                    self._is_told = True
                self._forget()
            except Exception:
                log.exception("figures by token that waited are not written: a defect")
                self._forget()

    async def _send(self, producer: Producer) -> None:
        some = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
        self._size -= sum(map(_size, some))
        failed = await asyncio.gather(*(_durable(producer, one) for one in some), return_exceptions=True)
        errors = [error for error in failed if error is not None]
        _drop(len(errors))
        for error in errors:
            # Of one that is too large the others can still be written.
            if not isinstance(error, EncodeError | RecordTooLargeError):
                raise error
        if not self._waiting:
            self._news.clear()
            self._empty.set()

    def _forget(self) -> None:
        _drop(len(self._waiting))
        self._waiting.clear()
        self._size = 0
        self._news.clear()
        self._empty.set()


async def _durable(producer: Producer, record: TokenFigures) -> None:
    await (await producer.send(TOKEN_FIGURES, record.task_id, record))


def _size(record: TokenFigures) -> int:
    return len(record.gaps) + len(record.entropies)


def _drop(records: int) -> None:
    if records:
        TOKEN_FIGURES_DROPPED.add(records)
