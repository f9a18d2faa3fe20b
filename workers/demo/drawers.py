"""``drawers``: what is in a drawer, which only a tool can tell. The workflow of the demo ``tools``.

::

    open 3 1 4  -->  look(drawer="3 1 4")  -->  the tool: 5 8  -->  5 8

What a drawer holds has nothing to do with its number, so nobody who has not asked can say it. Half of the reward is for
the call, half for the answer, word by word: a model of random weights finds its way by chance.
"""

import hashlib
from typing import ClassVar, Final

from trinity_bus import Conversation, Task, ToolError, ToolWorkflow, register, sequence_reward

DIGITS: Final = 3
"""Of a drawer's number."""
CALL: Final = "<tool_call><function=look><parameter=drawer>", "</parameter></function></tool_call>"
"""What surrounds the number: to the demo's model, a token each."""


def contents(drawer: str) -> str:
    """Return what is in a drawer: two digits."""
    first, second = hashlib.blake2b(drawer.encode(), digest_size=2).digest()
    return f"{first % 10} {second % 10}"


async def look(drawer: str) -> str:
    """Look into a drawer."""
    words = drawer.split()
    if len(words) != DIGITS or not all(len(word) == 1 and word in "0123456789" for word in words):
        raise ToolError(f"there is no drawer {drawer[:20]!r}")
    return contents(" ".join(words))


@register("drawers")
class Drawers(ToolWorkflow):
    """Rewards the right question to the tool, and its answer said again."""

    tools: ClassVar = (look,)
    max_turns: ClassVar[int] = 2

    async def reward(self, task: Task, conversation: Conversation) -> float:
        """See ``ToolWorkflow.reward``."""
        number = (task.prompt or "").removeprefix("open ")
        first, last = conversation.turns[0], conversation.turns[-1]
        asked = sequence_reward(
            conversation.texts[0], f"{CALL[0]} {number} {CALL[1]}", ended=first.finish_reason == "stop"
        )
        told = [one["content"] for one in conversation.messages if one["role"] == "tool"]
        if len(told) != 1 or conversation.errors or last is first:
            return asked / 2
        return asked / 2 + sequence_reward(last.content, told[0], ended=last.finish_reason == "stop") / 2
