"""``trail``: drawers, each of which holds the number of the next, which only a tool can tell. The demo ``tools``.

::

    3 1 4  -->  look("3 1 4")  -->  the tool: 9 5 4  -->  look("9 5 4")  -->  the end

What a drawer holds has nothing to do with its number, so nobody who has not looked can say where the trail goes on.
Each turn is rewarded word by word, so that a model of random weights finds its way by chance; a turn that is not
reached is worth nothing. A call that cannot be made ends the trail: a model that knows no words cannot be told why.
"""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import fmean
from typing import ClassVar, Final

from trinity_bus import Conversation, RolloutContext, Task, ToolError, ToolWorkflow, register, sequence_reward
from trinity_bus.chat import ModelReply
from trinity_bus.rollout.conversations import OtherSide
from workers.demo.subjects import CLOSE, OPEN

DIGITS: Final = 3  # Of a drawer's number


def contents(drawer: str) -> str:
    """Return what is in a drawer: the number of the next."""
    return " ".join(str(byte % 10) for byte in hashlib.blake2b(drawer.encode(), digest_size=DIGITS).digest())


async def look(drawer: str) -> str:
    """Look into a drawer."""
    words = drawer.split()
    if len(words) != DIGITS or not all(len(word) == 1 and word in "0123456789" for word in words):
        raise ToolError(f"there is no drawer {drawer[:20]!r}")
    return contents(" ".join(words))


@register("trail")
class Trail(ToolWorkflow):
    """Rewards each look into the drawer that was named last."""

    tools: ClassVar = (look,)
    max_turns: ClassVar[int] = 2

    @asynccontextmanager
    async def other_side(self, task: Task, ctx: RolloutContext, conversation: Conversation) -> AsyncIterator[OtherSide]:
        """See ``ConversationWorkflow.other_side``: the tool, until the trail has ended."""
        async with super().other_side(task, ctx, conversation) as answer:

            async def until_the_end(said: ModelReply) -> bool:
                return await answer(said) or conversation.errors > 0 or len(conversation.turns) == self.max_turns

            yield until_the_end

    async def reward(self, task: Task, conversation: Conversation) -> float:
        del task
        before = [one for one in conversation.messages if one["role"] != "assistant"]
        rewards = [
            sequence_reward(text, f"{OPEN} {told['content']} {CLOSE}", ended=said.finish_reason == "stop")
            for told, said, text in zip(before, conversation.turns, conversation.texts, strict=False)
        ]
        return fmean([*rewards, *[0.0] * (self.max_turns - len(rewards))])
