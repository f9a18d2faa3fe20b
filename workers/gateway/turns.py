"""Completed turns of sessions, on the log: after the answer, never before it.

::

    an answer --keep--> queued, at most ``MOST`` and ``MOST_BYTES`` --> ``turns``, keyed by the session's task
                           '--full, because the broker is away: passed over, counted

Failures: a turn that no record can hold, or that no broker takes, is passed over, counted and told; answers go on.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from schemas.errors import SchemaError
from schemas.groups.vectors import FLOAT32, INT32
from schemas.sampling import Sampling
from schemas.topics import TURNS
from schemas.turn import Answer, Turn
from trinity_bus.bus import Producer
from trinity_bus.chat import wire
from trinity_bus.chat.messages import Completion
from trinity_bus.errors import BusError
from trinity_bus.rollout.turns import drawn_responses, question_of_prompt

log = logging.getLogger("workers.gateway")

MOST: Final = 1000  # turns that wait to be sent
_TOKEN_BYTES: Final = INT32.itemsize + FLOAT32.itemsize
MOST_BYTES: Final = 64 << 20  # of their tokens and log-probabilities


def question_of(prompt: Sequence[int]) -> str:
    """Return what an answer to a prompt is known by on the log, however it was drawn."""
    return question_of_prompt(prompt, Sampling(), 1)


@dataclass(eq=False)
class TurnLog:
    producer: Producer
    _: KW_ONLY
    gateway: str
    incarnation: str
    workflow: str

    def __post_init__(self) -> None:
        self._waiting: asyncio.Queue[tuple[Turn, int]] = asyncio.Queue(MOST)
        self._bytes = 0
        self.passed_over = 0  # turns that are not on the log

    def keep(
        self,
        task_id: str,
        number: int,
        prompt: Sequence[int],
        drawings: Sequence[Completion],
        *,
        answer_id: str,
        alone: bool,
    ) -> None:
        """Take a turn, to be sent soon; with its prompt, where it is a conversation alone."""
        kept_prompt = wire.token_bytes(prompt) if alone else None
        size = sum(_TOKEN_BYTES * len(one.token_ids) + len(one.kept or b"") for one in drawings)
        size += len(kept_prompt or b"")
        if self._waiting.full() or self._bytes + size > MOST_BYTES:
            self.passed_over += 1
            return
        turn = Turn(
            task_id=task_id,
            attempt=1,
            run_id=0,
            number=number,
            after=min(number, 1),
            workflow=self.workflow,
            explorer=self.gateway,
            incarnation=self.incarnation,
            answers=[
                Answer(
                    question=question_of(prompt),
                    responses=drawn_responses(drawings),
                )
            ],
            answer_id=answer_id,
            prompt=kept_prompt,
        )
        self._waiting.put_nowait((turn, size))
        self._bytes += size

    async def run(self) -> None:
        while True:
            turn, size = await self._waiting.get()
            try:
                await (await self.producer.send(TURNS, turn.task_id, turn))
            except (SchemaError, BusError) as error:
                self.passed_over += 1
                log.warning("a turn of %s is not on the log: %s", turn.task_id, error)
            self._bytes -= size
