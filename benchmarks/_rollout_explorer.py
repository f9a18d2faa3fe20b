"""An explorer in a process of its own, which also draws past the explorer when it is asked to, and tells what it knows.

::

    pipe: Bare(...) --> (tokens, seconds)        None --> the end
          TELL      --> Told        Writes(...) --> True, from then on
"""

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import uvloop

from schemas import Sampling
from trinity_bus.bus import Bus
from trinity_bus.chat.messages import Completion
from trinity_bus.config import Settings
from trinity_bus.inference.completion import Watch
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.inference.sampling import sampling_arguments, vllm_parameters
from trinity_bus.runners.fork_server import ForkServer
from workers.explorer.service import ExplorerService

TELL = "tell"
_COUNT_S = 0.005


@dataclass(frozen=True, slots=True)
class Bare:
    prompts: list[list[int]]
    n: int
    in_flight: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Told:
    spent: dict[int, list[float]]
    """Seconds of each request, by the length of its prompt."""
    cached: int
    block: int
    """Tokens of one of the prefix cache."""


@dataclass(frozen=True, slots=True)
class Writes:
    """Whether long responses are written while they are drawn, as they are with an engine that tells versions."""

    on: bool


class TimedEngine(InferenceEngine):
    spent: defaultdict[int, list[float]]

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
        began = time.perf_counter()
        drawn = await super().generate(prompt_token_ids, sampling, n, traceparent, watch=watch, trained=trained)
        self.spent[len(prompt_token_ids)].append(time.perf_counter() - began)
        return drawn


async def bare(engine: InferenceEngine, asked: Bare) -> tuple[int, float]:
    from vllm.inputs import tokens_input

    llm: Any = engine.llm
    how = Sampling(ignore_eos=True)
    arguments = sampling_arguments(how, asked.n, temperature=1.0, max_tokens=asked.tokens)
    waiting = iter(asked.prompts)

    async def client() -> int:
        tokens = 0
        for prompt in waiting:
            async for output in llm.generate(tokens_input(prompt), vllm_parameters(arguments), uuid.uuid4().hex):
                final = output
            tokens += sum(len(completion.token_ids) for completion in final.outputs)
        return tokens

    began = time.perf_counter()
    tokens = await asyncio.gather(*(client() for _ in range(asked.in_flight)))
    return sum(tokens), time.perf_counter() - began


def explorer_side(pipe: Connection, settings: Settings, drawn: "Synchronized[int]") -> None:
    async def count(engine: InferenceEngine) -> None:
        while True:
            drawn.value = engine.tokens_generated
            await asyncio.sleep(_COUNT_S)

    async def main() -> None:
        began = time.perf_counter()
        fork_server = ForkServer(settings)
        engine = TimedEngine(settings.explorer)
        engine.spent = defaultdict(list)
        await engine.start()
        await fork_server.ready()
        pipe.send(time.perf_counter() - began)
        async with Bus(settings.kafka, client_id=settings.explorer.name) as bus:
            exploring = asyncio.create_task(ExplorerService(settings, bus, engine, fork_server).run())
            counting = asyncio.create_task(count(engine))
            while (asked := await asyncio.to_thread(pipe.recv)) is not None:
                if asked == TELL:
                    block = engine.llm.vllm_config.cache_config.block_size
                    pipe.send(Told(dict(engine.spent), engine.tokens_cached, block))
                elif isinstance(asked, Writes):
                    engine.tells_versions = asked.on
                    pipe.send(True)
                else:
                    pipe.send(await bare(engine, asked))
            counting.cancel()
            exploring.cancel()
            await asyncio.wait([exploring])
        await engine.stop()
        fork_server.close()

    uvloop.run(main())
