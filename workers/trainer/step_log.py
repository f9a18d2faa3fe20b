"""The topic ``steps``, as one trainer writes it and obeys it: see ``schemas.step``."""

import logging

from schemas import StepBegun, StepEnded
from schemas.record import Metrics
from schemas.step import KEPT_STEPS, ended_key, step_key
from schemas.topics import STEPS
from trinity_bus.bus import Bus, Producer
from workers.trainer.step_records import StepRecords, otherwise

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
