"""The topic ``steps``, as one trainer writes it and obeys it: see ``schemas.step``.

``StepRecords`` is what this trainer has written, which binds it; ``RecordedSteps`` what another one
has, which it follows.

::

    records of `steps` --take--> those of this trainer and run, the last one of each step
    a step that is due --> as it would be chosen now --binding--> what was written of it before, or None: write it

    what was begun before it   --earlier--> what may be learned from once more (``training/steps/choice.py``)

    records of another trainer --take--> of each step: whose run, where its record lies, what it needs
    the steps to be trained    --gap--> the first of them that cannot be trained once more, and why; or None

Another's records stay on the log: they may be large.

Failures: a record of a step to be taken that cannot be read ends the trainer, and so does one of a step that is learned
from once more. What has another key than the record of such a step is not looked at: the topic is everybody's who
trains, and is kept for good.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas import StepBegun, StepEnded
from schemas.record import Metrics
from schemas.step import KEPT_STEPS, ended_key, step_key, step_of_key
from schemas.topics import STEPS
from trinity_bus.bus import Bus, Producer, Received, Undecodable
from trinity_bus.training.errors import TrainingError


class StepRecords:
    """``trained``: steps that are in the newest checkpoint; ``reach``: as of ``training_loop.opened``."""

    def __init__(self, trainer: str, run: str, trained: int, *, reach: int = 0) -> None:
        self._trainer = trainer
        self._run = run
        self._trained = trained
        self._reach = reach
        self._begun: dict[int, StepBegun] = {}
        self._earlier: dict[int, StepBegun] = {}
        # Of each step that is known, what follows its batch in ``batches``
        self._ends: dict[int, int] = {}

    def take(self, received: Received[Any]) -> None:
        record = received.record
        step = step_of_key(received.key, self._trainer)
        if step is None:
            return
        if isinstance(record, Undecodable) and step > self._trained - self._reach:
            raise TrainingError(
                f"{received.place} cannot be read ({record.reason}: {record.detail}), and it may be of a step that is "
                "to be taken again, or learned from once more: start a trainer that knows this version of the records"
            )
        if not isinstance(record, StepBegun):
            return
        if (record.trainer, record.run, record.step) == (self._trainer, self._run, step):
            self.note(record)
            if step > self._trained:
                self._begun[step] = record

    def note(self, begun: StepBegun) -> None:
        if not self._reach:
            return
        self._ends[begun.step] = begun.next_offset
        self._ends.pop(begun.step - KEPT_STEPS, None)
        if begun.step > self._trained - self._reach:
            self._earlier[begun.step] = begun
            self._earlier.pop(begun.step - self._reach, None)

    def earlier(self) -> list[StepBegun]:
        return [self._earlier[step] for step in sorted(self._earlier)]

    def needs_from(self, oldest: int) -> int:
        """Return the offset in ``batches`` whose experiences are needed, if the oldest checkpoint needs ``oldest``."""
        if not self._reach:
            return oldest
        step = next((step for step, end in self._ends.items() if end == oldest), 0)
        return self._ends.get(step - self._reach, 0)

    @property
    def examples(self) -> int:
        """How many examples the steps to be taken again have chosen from; 0 where nothing is known of that."""
        return max((record.examples for record in self._begun.values()), default=0)

    def binding(self, chosen: StepBegun) -> StepBegun | None:
        """Return what was written of the step before, where it is the same step of the same batch; it is forgotten."""
        known = self._begun.pop(chosen.step, None)
        if known is None or _what(known) != _what(chosen):
            return None
        return known


def otherwise(known: StepBegun, chosen: StepBegun) -> str:
    """Return what the record of a step has otherwise than it would be chosen now; nothing where it is equal."""
    told = []
    if known.seed != chosen.seed:
        told.append(f"seed {known.seed}, now {chosen.seed}")
    then, now = (
        {(one.task_id, sample) for one in record.left_out for sample in one.samples} for record in (known, chosen)
    )
    if then != now:
        told.append(f"leaves out {len(then)}, now {len(now)}" + (" others" if len(then) == len(now) else ""))
    if (known.demonstrations, known.preferences) != (chosen.demonstrations, chosen.preferences):
        told.append("other examples")
    if known.replayed != chosen.replayed:
        told.append(f"learns from {len(known.replayed)} groups once more, now {len(chosen.replayed)}")
    return "; ".join(told)


def _what(record: StepBegun) -> tuple[Any, ...]:
    # All but who chose, and what
    passed_over = record.skipped is not None
    return record.run, record.model, record.batch_id, record.sequence, record.groups, passed_over


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    run: str
    # Of its record in ``steps``
    offset: int
    # Of each partition of ``experiences`` the first offset that it was trained on
    needs: Mapping[int, int] = field(default_factory=dict)
    # Its batch, and whether that was passed over
    what: tuple[str, bool] = ("", False)
    # Why its record cannot be read; empty where it can
    unreadable: str = ""


class RecordedSteps:
    def __init__(self, trainer: str) -> None:
        self.trainer = trainer
        # The run of the newest record; empty where there is none
        self.run = ""
        self._steps: dict[int, Recorded] = {}

    def take(self, received: Received[Any]) -> None:
        record, step = received.record, step_of_key(received.key, self.trainer)
        if step is None:
            return
        if isinstance(record, Undecodable):
            why = f"{received.place} cannot be read ({record.reason}: {record.detail})"
            self._steps[step] = Recorded(run=self.run, offset=received.offset, unreadable=why)
        elif not isinstance(record, StepBegun):
            self._steps.pop(step, None)
        elif (record.trainer, record.step) == (self.trainer, step):
            self.run = record.run
            what = (record.batch_id, record.skipped is not None)
            self._steps[step] = Recorded(run=record.run, offset=received.offset, needs=_needs(record), what=what)

    def of(self, run: str) -> dict[int, Recorded]:
        return {step: said for step, said in self._steps.items() if said.run == run}


def _needs(record: StepBegun) -> dict[int, int]:
    first: dict[int, int] = {}
    for group in (*record.groups, *record.replayed):
        for part in group.parts:
            if (at := part.position) is not None:
                first[at.partition] = min(at.offset, first.get(at.partition, at.offset))
    return first


def gap(steps: Mapping[int, Recorded], first: int, last: int, kept_from: Mapping[int, int]) -> tuple[int, str] | None:
    """Return the first step that cannot be trained once more, and why; None where all can.

    ``kept_from`` has of each partition of ``experiences`` the first offset that is left.
    """
    for step in range(first, last + 1):
        said = steps.get(step)
        if said is None:
            return step, "its record on steps is gone"
        if said.unreadable:
            return step, said.unreadable
        if any(offset < kept_from.get(partition, 0) for partition, offset in said.needs.items()):
            return step, "its experiences are gone from the log"
    return None


def first_trainable(
    steps: Mapping[int, Recorded], starts: Iterable[int], last: int, kept_from: Mapping[int, int]
) -> int | None:
    # ``starts``: after which steps there are weights to begin with; 0 for the model itself
    firsts = (start + 1 for start in sorted(starts) if start < last)
    return next((first for first in firsts if gap(steps, first, last, kept_from) is None), None)


def contradicted(own: Mapping[int, Recorded], theirs: Mapping[int, Recorded], trained: int) -> int | None:
    """Return the first step that was trained here, and that the other trainer has taken otherwise."""
    both = sorted(step for step in own.keys() & theirs.keys() if step <= trained)
    return next((step for step in both if own[step].what != theirs[step].what), None)


log = logging.getLogger(__name__)

# Of what is left out, in a log line
_MAX_SHOWN = 8


class StepLog:
    def __init__(self, trainer: str, run: str, trained: int, *, reach: int = 0, bus: Bus, producer: Producer) -> None:
        self.trainer = trainer
        self.run = run
        self.records = StepRecords(trainer, run, trained, reach=reach)
        self._bus = bus
        self._producer = producer

    async def replay(self) -> None:
        async with self._bus.reader(STEPS, start="beginning") as steps:
            async for received in steps.replay():
                self.records.take(received)

    async def begin(self, chosen: StepBegun) -> StepBegun:
        """Return what was written of the step that begins before, or else what is chosen now, durable."""
        step = chosen.step
        begun = self.records.binding(chosen)
        if begun is None:
            begun = chosen
            await (await self._producer.send(STEPS, step_key(self.trainer, step), chosen))
            if step > KEPT_STEPS:
                await self._producer.send_raw(STEPS, step_key(self.trainer, step - KEPT_STEPS), None)
        else:
            log.info("step %d was begun before, by %s: it is taken as then", step, begun.incarnation)
            if differs := otherwise(begun, chosen):
                log.warning(
                    "step %d is taken as its record says, not as the settings would have it now: %s", step, differs
                )
        self.records.note(begun)
        if begun.left_out:
            total = sum(len(one.samples) for one in begun.left_out)
            shown = "; ".join(
                f"task {one.task_id}, sample {one.samples[0]}: {one.detail}" for one in begun.left_out[:_MAX_SHOWN]
            )
            log.warning("step %d leaves out %d samples: %s", step, total, shown)
        return begun

    async def end(self, begun: StepBegun, metrics: Metrics, seconds: float) -> None:
        """Write the metrics of a step whose version nobody is told of."""
        ended = StepEnded(
            trainer=self.trainer,
            incarnation=begun.incarnation,
            run=self.run,
            model=begun.model,
            step=begun.step,
            batch_id=begun.batch_id,
            follows=begun.follows,
            metrics=metrics,
            seconds=seconds,
        )
        await (await self._producer.send(STEPS, ended_key(self.trainer, begun.step), ended))
        if begun.step > KEPT_STEPS:
            await self._producer.send_raw(STEPS, ended_key(self.trainer, begun.step - KEPT_STEPS), None)
