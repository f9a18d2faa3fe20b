"""Text environments with Gymnasium's interface, as workflows: games, simulators, shells.

::

    make(task) --reset(seed)--> what is seen --> the model --said--> step(action) --> reward, what is seen --> close
                                                   ^                                         |
                                                   '------------- not over yet --------------'

Each step's reward is that of the model's turn; the run's is their sum. An attempt that goes on after its explorer's
death takes the same steps anew; where the environment shows something else, the model is asked anew from there.

Failures: what the environment raises is the failure of its run, as is one that takes longer for a call than it may
(``EnvironmentTimeoutError``). Its methods may block: each call has a thread of its own.
"""

import math
import zlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Protocol, SupportsFloat

from schemas.task import Task
from trinity_bus.chat import ModelReply
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.conversations import Conversation, ConversationWorkflow, OtherSide
from trinity_bus.rollout.threads import within
from trinity_bus.rollout.workflow import RolloutContext


class EnvironmentTimeoutError(TrinityError, TimeoutError):
    pass


class TextEnv(Protocol):
    """What Gymnasium's environments are, as far as it is used. Its methods may be ``async``."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin anew. Returns what is seen, and a dict that is passed over."""

    def step(self, action: Any) -> Any:
        """Do something. Returns what is seen, a reward, whether it has ended or was cut off, and likewise a dict."""

    def close(self) -> Any:
        pass


class TextEnvWorkflow(ConversationWorkflow):
    """A conversation with an environment. Register the subclass, with its ``make``.

    The task's messages, or its prompt as that of the system, stand before what is seen first. ``data["seed"]`` and
    ``data["options"]`` are given to ``reset``; the seed follows from the task's id otherwise.
    """

    step_timeout_s: ClassVar[float] = 30.0  # of one call of the environment
    close_timeout_s: ClassVar[float] = 2.0  # of its end

    @abstractmethod
    def make(self, task: Task) -> TextEnv:
        """Return an environment for one run. May block, or be ``async``."""

    def action(self, said: str) -> Any:
        """Return what the environment is given for what the model has said."""
        return said

    def seen(self, observation: Any) -> str:
        """Return what the model is told of what the environment has shown."""
        return str(observation)

    async def reward(self, task: Task, conversation: Conversation) -> float:
        del task
        return math.fsum(conversation.rewards)

    async def turn_reward(self, task: Task, conversation: Conversation) -> float | None:
        del task
        return conversation.rewards[-1] if len(conversation.rewards) == len(conversation.turns) else None

    def opening(self, task: Task) -> list[dict[str, Any]]:
        if task.messages is None:
            return [] if task.prompt is None else [{"role": "system", "content": task.prompt}]
        return super().opening(task)

    @asynccontextmanager
    async def other_side(self, task: Task, ctx: RolloutContext, conversation: Conversation) -> AsyncIterator[OtherSide]:
        del ctx

        async def call(
            function: Callable[..., Any], *args: Any, limit_s: float = self.step_timeout_s, **more: Any
        ) -> Any:
            late = EnvironmentTimeoutError(f"{function.__qualname__} gave nothing within {limit_s:g} s")
            return await within(limit_s, late, function, *args, **more)

        def show(observation: Any) -> None:
            conversation.messages.append({"role": "user", "content": self.seen(observation)})

        async def answer(said: ModelReply) -> bool:
            observation, reward, ended, cut, _ = await call(env.step, self.action(said.content))
            worth: SupportsFloat = reward
            conversation.rewards.append(float(worth))
            conversation.truncated = bool(cut)
            show(observation)
            return bool(ended or cut)

        env: TextEnv = await call(self.make, task)
        try:
            seed = int(task.data.get("seed", zlib.crc32(task.task_id.encode())))
            observation, _ = await call(env.reset, seed=seed, options=task.data.get("options"))
            show(observation)
            yield answer
        finally:
            await call(env.close, limit_s=self.close_timeout_s)
