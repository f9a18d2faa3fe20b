"""Steps that are made of examples alone, for a trainer without batches and explorers; see ``without_batches``.

::

    open:   find out which examples there are (workers/trainer/examples.py)
    step:   the examples of this step, by seed and number -> what of them is left out -----------------> steps
"""

from schemas import StepBegun
from schemas.topics import DEMONSTRATIONS
from trinity_bus.training.checkpoint import TrainingProgress
from workers.trainer.training_loop import StepInput
from workers.trainer.without_batches import TrainerContext


class ExampleSteps:
    def __init__(self, around: TrainerContext) -> None:
        if around.examples is None:
            raise ValueError(f"{around.topic.name} has no examples")
        self._settings = around.settings.trainer
        self._around = around
        self._examples = around.examples
        self._kind = "demonstrations" if around.topic is DEMONSTRATIONS else "preferences"

    async def open(self, progress: TrainingProgress) -> None:
        await self._examples.settle(progress.examples or self._around.steps.examples)

    async def wait(self, _step: int) -> None:
        # It is known from the beginning.
        pass

    async def look_ahead(self, _step: int) -> None:
        # There is little to fetch.
        pass

    async def begin(self, step: int) -> StepInput:
        shown = await self._examples.chosen(seed=self._settings.seed, step=step)
        chosen = StepBegun(
            trainer=self._around.steps.trainer,
            incarnation=self._around.incarnation,
            run=self._around.steps.run,
            model=self._around.settings.mesh.model,
            step=step,
            batch_id=f"{self._kind}-{step}",
            sequence=step,
            next_offset=0,
            seed=self._settings.seed,
            left_out=shown.left_out,
            examples=self._examples.count,
            **{self._kind: shown.positions},
        )
        begun = await self._around.steps.begin(chosen)
        if (said := begun.demonstrations or begun.preferences) != shown.positions:
            shown = await self._examples.at(said)
        return StepInput(begun, examples=shown.samples)
