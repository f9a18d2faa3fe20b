"""Turns of one run, as an explorer would have written them, and attempts at it that go on from them."""

from dataclasses import dataclass, field
from typing import Any

from schemas import Answer, PartialResponses, Turn
from schemas.codec import decode, encode
from schemas.turn import chain
from trinity_bus.rollout.turns import RunTurns
from trinity_bus.rollout.workflow import RolloutContext


def turn(number: int, attempt: int, after: int = 0, answers: list[Answer] | None = None) -> Turn:
    """Return a turn of a run, which an attempt completed after the one that another one (0: none) had completed."""
    return Turn(
        task_id="t",
        attempt=attempt,
        run_id=0,
        number=number,
        after=after,
        workflow="agent",
        explorer="e",
        incarnation="i",
        answers=answers or [],
    )


def partial_responses(answers: list[Answer], attempt: int = 1) -> PartialResponses:
    """Return what an attempt at two runs of that task has written of its responses."""
    # Not validated: there may be more answers than a record may have.
    return PartialResponses.model_construct(
        task_id="t",
        attempt=attempt,
        run_id_base=0,
        repeat_times=2,
        workflow="agent",
        explorer="e",
        incarnation="i",
        answers=answers,
    )


@dataclass
class TurnLog:
    """The log that the turns of a run's attempts go to."""

    turns: list[Turn] = field(default_factory=list)

    async def write(self, completed: Turn) -> None:
        self.turns.append(decode(encode(completed), Turn))

    def attempt(self) -> RunTurns:
        """The turns of the next attempt, which goes on from those of the log."""
        number = max((one.attempt for one in self.turns), default=0) + 1
        return RunTurns(chain(self.turns), turn(0, number), self.write)

    def context(self, engine: Any, **how: Any) -> RolloutContext:
        """What the next attempt's workflow is given."""
        turns = self.attempt()
        return RolloutContext(
            engine=engine, tokenizer=engine.tokenizer, repeat_times=1, turns_of=lambda _: turns, **how
        )
