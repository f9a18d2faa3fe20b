"""What workflows ask of other pools: real HTTP between explorers, on FAKE engines and a fake log."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from schemas import Sampling
from schemas.topics import EXPLORER_EVENTS
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.log import FakeBus, FakeLog
from tests.support.gateway.rig import JUDGE, SECRET
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus
from trinity_bus.config import ExplorerSettings, KafkaSettings, Settings
from trinity_bus.inference.concurrency import ConcurrencyController
from trinity_bus.inference.errors import (
    EngineSlowError,
    GenerationError,
    NoEngineError,
    RequestRefusedError,
    UnknownPoolError,
)
from trinity_bus.testing import CharacterTokenizer
from workers.explorer.auxiliary import AuxiliaryPools
from workers.explorer.http_side import HttpSide
from workers.explorer.weights import ServedVersion
from workers.preconditions import problems

ASKED = json.dumps([{"role": "user", "content": "Good?"}]).encode()


@dataclass(slots=True)
class Rig:
    pools: AuxiliaryPools
    judge: FakeEngine
    side: HttpSide


@asynccontextmanager
async def rig(**settings: Any) -> AsyncIterator[Rig]:
    """An explorer that may ask two pools, of which ``judge`` has one explorer, and ``teacher`` none."""
    own = ExplorerSettings(
        http_key=SECRET, auxiliary_pools="judge,teacher", **{"auxiliary_wait_s": 0.1, "max_tokens": 3, **settings}
    )
    log, engine = FakeLog(), FakeEngine(version=-1, answer="Score: 7")
    async with (
        HttpSide(
            ExplorerSettings(http_port=0, http_key=SECRET),
            engine,
            ServedVersion(-1),
            ConcurrencyController(64, 1),
            CharacterTokenizer,
        ) as side,
        AuxiliaryPools(own, cast("Bus", FakeBus(log))) as pools,
    ):
        await (await FakeBus(log).producer().send(EXPLORER_EVENTS, "judge-0", side.told(JUDGE)))

        async def heard() -> bool:
            try:
                return len(await pools("judge").score([1, 2], 1)) == 1
            except NoEngineError:
                return False

        while not await heard():
            pass
        engine.prompts.clear()
        yield Rig(pools, engine, side)


async def test_a_judge_answers_a_conversation_that_its_own_tokenizer_writes() -> None:
    async with rig() as here:
        assert await here.pools("judge").chat(ASKED, Sampling()) == "Score: 7"
        assert ["".join(map(chr, prompt)) for prompt in here.judge.prompts] == ["user: Good?\nassistant: "]


async def test_a_pool_draws_after_token_ids_with_the_limit_of_whoever_asks() -> None:
    async with rig() as here:
        here.judge.answer = "abc"
        drawn = await here.pools("judge").generate([7, 8], Sampling(), 2)
        assert [(one.token_ids, one.finish_reason, one.versions) for one in drawn] == [([97, 98, 99], "stop", [])] * 2
        here.judge.answer = "abcd"
        with pytest.raises(GenerationError, match="more than the 3 tokens"):
            await here.pools("judge").generate([7, 8], Sampling(), 1)


async def test_a_teacher_says_how_likely_each_token_is() -> None:
    async with rig() as here:
        assert await here.pools("judge").score([1, 20, 30], 1) == pytest.approx([-0.02, -0.03])
        for tokens, start in (([1, 2], 0), ([1, 2], -1)):
            with pytest.raises(RequestRefusedError):
                await here.pools("judge").score(tokens, start)


async def test_what_cannot_be_asked_is_a_failure_with_its_name() -> None:
    async with rig(auxiliary_timeout_s=0.3) as here:
        with pytest.raises(UnknownPoolError, match="auxiliary_pools has judge, teacher"):
            await here.pools("judges").chat(ASKED, Sampling())
        with pytest.raises(NoEngineError):
            await here.pools("teacher").chat(ASKED, Sampling())
        for messages in (b"[", b"{}", b"[1]", b"[]", b"\xff"):
            with pytest.raises(RequestRefusedError):
                await here.pools("judge").chat(messages, Sampling())
        here.judge.open.clear()
        with pytest.raises(EngineSlowError):
            await here.pools("judge").chat(ASKED, Sampling())
        await until(lambda: here.judge.aborted == 1)
        here.judge.open.set()
        await here.side.drain(0)
        with pytest.raises(NoEngineError):
            await here.pools("judge").chat(ASKED, Sampling())


async def test_who_may_ask_no_pool_asks_none() -> None:
    async with AuxiliaryPools(ExplorerSettings(), cast("Bus", FakeBus(FakeLog()))) as pools:
        with pytest.raises(UnknownPoolError, match="has none"):
            await pools("judge").score([1, 2], 1)


def test_pools_cannot_be_asked_without_a_key() -> None:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers="fake:9092"),
        explorer=ExplorerSettings(model_path="/model", auxiliary_pools="judge"),
    )
    assert [one for one in problems("explorer", settings) if "http_key" in one.lower()]
