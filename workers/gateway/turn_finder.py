"""What other gateways have answered in a session, found on the log when an agent reaches this one with it.

::

    a history whose last answer this gateway has not given --find--> ``turns`` of the session, of the last ``session_s``
        --Session.recall--> as far as they are what was drawn: the same samples as there, known by the same ids
        '--no such turns, or none in time: the history was rewritten, as far as can be known--> another sample

A turn is on the log soon after its answer, so it is looked for twice. After ``MOST_LOOKS`` times in vain nothing is
looked for any more: the agent rewrites its histories. A look that fails says nothing of that. The request waits for no
longer than ``LIMIT_S``, whatever the broker does: a look that hangs is left behind, and while ``MOST_HANGING`` of them
do so nothing is looked for.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from schemas.topics import TURNS
from schemas.turn import DrawnResponse, Turn
from trinity_bus.bus import Bus, partition_of
from trinity_bus.chat import Completion, Session
from trinity_bus.chat.openai import ChatRequest
from trinity_bus.errors import BusError
from trinity_bus.rollout.turns import KeptCompletion, kept_completion
from workers.gateway.turns import question_of

log = logging.getLogger("workers.gateway")

MOST_LOOKS: Final = 3
MOST_BYTES: Final = 64 << 20
"""Of the turns of one session."""
MOST_HANGING: Final = 16
LIMIT_S: Final = 0.5
"""Of both looks: by so much a broker can delay an answer."""
_AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found(KeptCompletion):
    answer_id: str | None


@dataclass(frozen=True, slots=True)
class RecalledAnswer:
    """What another gateway has answered."""

    id: str | None
    """None: its gateway has not told it."""
    place: tuple[int, int]
    """Sample and turn, of the response that the agent has gone on with."""


class TurnFinder:
    """Looks for turns.

    Args:
        bus: Connected.
        workflow: What stands in turns of gateways.
        keep_s: How old they may be.
    """

    def __init__(self, bus: Bus, *, workflow: str, keep_s: float) -> None:
        self._bus = bus
        self._workflow = workflow
        self._keep_s = keep_s
        self._looks: set[asyncio.Task[dict[str, Sequence[_Found]]]] = set()
        """Under way, those among them that nobody waits for any more."""
        self.recalled = 0
        """Answers of other gateways that were found."""

    async def into(self, session: Session, task_id: str, asked: ChatRequest) -> list[RecalledAnswer] | None:
        """Take into a session what others have answered of a history; return it, or None if it could not be looked for.

        Raises:
            ChatError: The history cannot be written as tokens.
        """
        recalled: list[RecalledAnswer] = []
        failed = False
        until = time.monotonic() + LIMIT_S
        for look in range(2):
            if look:
                await asyncio.sleep(_AGAIN_S)
            try:
                found = await self._look(task_id, until - time.monotonic())
            except (BusError, TimeoutError) as error:
                log.warning("turns of session %s cannot be looked for, which may begin a sample: %s", task_id, error)
                failed = True
                break
            stop = asked.sampling.stop or ()
            taken = session.recall(asked.messages, asked.tools, stop, partial(_drawn, found), asked.options)
            recalled += [
                RecalledAnswer(drawn.answer_id, (said.sample, said.turn))
                for drawn, said in taken
                if isinstance(drawn, _Found)
            ]
            if not session.misses(asked.messages, asked.tools):
                break
        self.recalled += len(recalled)
        return None if failed and not recalled else recalled

    async def _look(self, task_id: str, limit_s: float) -> dict[str, Sequence[_Found]]:
        """Return what is found in time; a reader that cannot even be closed is not waited for.

        Raises:
            BusError: The broker refuses.
            TimeoutError: It is slow.
        """
        if len(self._looks) >= MOST_HANGING:
            raise TimeoutError("the broker answers none of those who look")
        look = asyncio.create_task(self._find(task_id), name=f"turns of {task_id}")
        self._looks.add(look)
        look.add_done_callback(self._looked)
        try:
            done, _ = await asyncio.wait([look], timeout=max(0.0, limit_s))
        finally:
            look.cancel()
        if not done:
            raise TimeoutError(f"the broker takes longer than {LIMIT_S:g} s")
        return look.result()

    def _looked(self, look: asyncio.Task[dict[str, Sequence[_Found]]]) -> None:
        self._looks.discard(look)
        if not look.cancelled():
            # Otherwise asyncio tells of an error that nobody has waited for.
            look.exception()

    async def _find(self, task_id: str) -> dict[str, Sequence[_Found]]:
        """Return what was drawn in a session, by the question of its prompt."""
        partition = partition_of(task_id, TURNS.partitions)
        since = await self._bus.offsets_from(TURNS, round((time.time() - self._keep_s) * 1000))
        start = {(TURNS.name, partition): since[partition]}
        found: defaultdict[str, list[_Found]] = defaultdict(list)
        size = 0
        async with self._bus.reader(TURNS, partitions=[partition], start=start, key=task_id) as reader:
            async for received in reader.replay():
                turn = received.record
                if not isinstance(turn, Turn) or (turn.task_id, turn.workflow) != (task_id, self._workflow):
                    continue
                size += len(received.raw)
                if size > MOST_BYTES:
                    log.warning("session %s has more turns than are recalled", task_id)
                    break
                for answer in turn.answers:
                    found[answer.question] += [_found(one, turn) for one in answer.responses or ()]
        return dict(found)


def _drawn(found: Mapping[str, Sequence[_Found]], prompt: Sequence[int]) -> Sequence[Completion]:
    return found.get(question_of(prompt), ())


def _found(drawn: DrawnResponse, turn: Turn) -> _Found:
    kept = kept_completion(drawn)
    return _Found(kept.token_ids, kept.logprobs, kept.finish_reason, kept.versions, answer_id=turn.answer_id)
