"""A FAKE engine: draws fixed tokens at once, or hangs, or fails, as its test tells it. It says so in its name."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from benchmarks._scheduling.explorer import ZeroCostEngine
from schemas import Member, ModelVersion, Sampling
from schemas.experience import UInt8
from trinity_bus.chat.messages import Completion
from trinity_bus.inference.completion import Gathered, Watch
from trinity_bus.inference.errors import UnknownPoolError
from trinity_bus.inference.weight_sync import SyncOutcome

TOKENIZER = "tests.support.fakes.tokenizer:load"
"""For the fork server of an explorer on a fake engine."""

_TURNS = 6  # of the loop


async def keep_nothing(turn: bytes) -> None:
    """FAKE: says of every turn that it is durable."""


class FakeEngine(ZeroCostEngine):
    """Answers every prompt with ``answer``."""

    def __init__(self, *, version: int = 0, answer: str = "42") -> None:
        super().__init__(version=version)
        self.answer = answer
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0
        self.most_waiting = 0
        self.aborted = 0
        self.prompts: list[list[int]] = []
        self.parents: list[str | None] = []
        """The trace context of each prompt."""
        self.trained: list[bool] = []
        """Of each prompt, whether what is drawn may be."""
        self.reason = "stop"
        """Why answers end, whatever their length."""
        self.hang_after: int | None = None
        """So many tokens of a stream are drawn, and no more."""
        self.expert: int | None = None
        """That the routers of both layers choose for every token; None: nobody notes it."""
        self.on_sync: Callable[[ModelVersion], Any] = lambda _: None

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        watch: Watch | None = None,
        trained: bool = False,
    ) -> list[Completion]:
        if watch is not None:
            gathered = Gathered(n)
            gathered.version = self.model_version
            watch(gathered.so_far)
            async with aclosing(self.stream(prompt_token_ids, sampling, n, traceparent, trained=trained)) as parts:
                async for index, more in parts:
                    gathered.add(index, more)
            return gathered.whole
        self.trained.append(trained)
        self.prompts.append(list(prompt_token_ids))
        self.parents.append(traceparent)
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.waiting -= 1
        token_ids = [ord(character) for character in self.answer]
        self.tokens_generated += n * len(token_ids)
        versions = [(0, self.model_version)] if self.model_version >= 0 else []
        routes = self._routes(len(prompt_token_ids) + len(token_ids))
        completion = Completion(token_ids, [-0.5] * len(token_ids), self.reason, versions, routes)
        return [completion] * n

    async def stream(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        trained: bool = False,
    ) -> AsyncGenerator[tuple[int, Completion]]:
        """A token at a time; before each it waits for ``open``. A prompt with a part of the answer gets the rest."""
        self.trained.append(trained)
        self.prompts.append(list(prompt_token_ids))
        self.parents.append(traceparent)
        prompt = "".join(map(chr, prompt_token_ids))
        drawn = next((k for k in range(len(self.answer) - 1, 0, -1) if prompt.endswith(self.answer[:k])), 0)
        rest = self.answer[drawn:][: sampling.max_tokens]
        versions = [(0, self.model_version)] if self.model_version >= 0 else []
        self.waiting += 1
        try:
            for at, character in enumerate(rest, 1):
                await self.open.wait()
                if self.hang_after == at - 1:
                    await asyncio.Event().wait()
                reason = self.reason if at == len(rest) else ""
                for index in range(n):
                    self.tokens_generated += 1
                    routes = self._routes(len(prompt) + len(rest)) if reason else None
                    yield index, Completion([ord(character)], [-0.5], reason, versions if reason else [], routes)
                self.steps.add(1)
                # Others have the loop for a while, as long as a real one computes.
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted += 1
            raise
        finally:
            self.waiting -= 1

    def _routes(self, tokens: int) -> UInt8 | None:
        return None if self.expert is None else np.full((tokens - 1, 2, 1), self.expert, np.uint8)

    async def score(self, token_ids: Sequence[int], start: int) -> list[float]:
        """FAKE: as likely as a token's number is small."""
        self.prompts.append(list(token_ids))
        await self.open.wait()
        return [-token / 1000 for token in token_ids[start:]]

    async def sync_weights(self, announced: ModelVersion, member: Member) -> SyncOutcome:
        result = self.on_sync(announced)
        if asyncio.iscoroutine(result):
            await result
        self.model_version = announced.version
        return SyncOutcome(announced.checksum, 0.001, 0.002, 0.003)


class FakePools:
    """FAKE: one pool, ``judge``, that says what it was asked, backwards."""

    def __call__(self, pool: str) -> "FakePools":
        if pool != "judge":
            raise UnknownPoolError(f"there is no pool {pool!r}")
        return self

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, n: int, traceparent: str | None
    ) -> list[Completion]:
        token_ids = list(prompt_token_ids)[::-1][: sampling.max_tokens]
        return [Completion(token_ids, [-0.25] * len(token_ids), "stop", [])] * n

    async def chat(self, messages: bytes, sampling: Sampling) -> str:
        said: str = json.loads(messages)[-1]["content"]
        return said[::-1]

    async def score(self, token_ids: Sequence[int], start: int) -> list[float]:
        return [-token / 1000 for token in token_ids[start:]]
