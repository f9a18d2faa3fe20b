"""What lies between a simulated coordinator and its observer."""

from typing import TYPE_CHECKING

from tests.support.simulation.coordinator import Changes
from trinity_bus.coordination import Effect, Input

if TYPE_CHECKING:
    from tests.support.simulation.world import World

type Decision = tuple[list[Input], list[Effect]]


class Honest:
    """What lies between the coordinator and its observer: nothing.

    Others spoil it, to see that the invariants notice.
    """

    def decided(self, world: "World", inputs: list[Input], effects: list[Effect]) -> Decision:
        return inputs, effects

    def stored(self, changes: Changes) -> Changes:
        return changes
