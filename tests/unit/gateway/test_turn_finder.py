import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from schemas.topics import TURNS
from tests.support.fakes.coordinator import FakeCoordinator
from tests.support.fakes.log import FakeBus
from tests.support.gateway.rig import ASKED, OTHERS_KEY, Rig, rig, say
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus.errors import BusError
from trinity_bus.gateway.sessions import new_answer_id
from workers.gateway import turn_finder

MORE: Any = {"role": "user", "content": "Sure?"}


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Rig, Rig]]:
    """Two gateways before one explorer."""
    async with rig() as here, rig(explorers=0, log=here.log) as there:
        await there.heard("explorer-0", address=here.sides["explorer-0"].address)
        yield here, there


async def ask(gateway: Rig, messages: list[Any], **how: Any) -> list[Any]:
    """Return what was asked, and the answer, and another question."""
    async with gateway.client(session="s", **how) as client:
        answer = await say(client, messages)
    return [*messages, answer.choices[0].message.model_dump(exclude_none=True), MORE]


async def refuse(*_: object) -> None:
    raise BusError("the fake broker is away")


async def on_the_log(here: Rig, turns: int) -> None:
    await until(lambda: len(here.log.all(TURNS)) == turns)


async def test_a_session_goes_on_at_any_gateway_with_the_tokens_that_were_drawn() -> None:
    async with two() as (here, there):
        engine = here.engines["explorer-0"]
        engine.answer = "4 2 "
        first = await ask(here, ASKED)
        await on_the_log(here, 1)
        engine.answer = "yes"
        second = await ask(there, first)
        await on_the_log(here, 2)
        await ask(here, second)
        # What was drawn is in the next prompt as it was drawn, a blank at its end that no message has included.
        assert ["".join(map(chr, prompt)) for prompt in engine.prompts[1:]] == [
            "user: 6*7=\nassistant: 4 2 \nuser: Sure?\nassistant: ",
            "user: 6*7=\nassistant: 4 2 \nuser: Sure?\nassistant: yes\nuser: Sure?\nassistant: ",
        ]
        for gateway, turns in ((there, 2), (here, 3)):
            assert (await gateway.post("/feedback", session="s", reward=1))[1]["counted"] == 1
            ((rollout,),) = [one.rollouts for one in gateway.gateway._sessions.pending("me")]
            assert rollout.turn_starts is not None
            assert len(rollout.turn_starts) == turns


async def test_answers_of_another_gateway_are_known_by_their_ids_where_the_session_went_on() -> None:
    async with two() as (here, there):
        async with here.client(session="s") as client:
            answer = await say(client)
        await on_the_log(here, 1)
        said = [*ASKED, answer.choices[0].message.model_dump(exclude_none=True), MORE]
        assert (await there.post("/feedback", msg_ids=[answer.id], reward=1))[0] == 404
        await ask(there, said)
        for counted in (1, 0):
            assert (await there.post("/feedback", msg_ids=[answer.id], reward=1))[1]["counted"] == counted
        ((rollout,),) = [one.rollouts for one in there.gateway._sessions.pending("me")]
        assert rollout.turn_rewards is not None
        assert rollout.turn_rewards[0] == 1.0
        await on_the_log(here, 2)
        assert [record_of(turn).number for turn in here.log.all(TURNS)] == [0, 1]


async def test_what_was_said_to_another_client_or_rewritten_is_another_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_finder, "_AGAIN_S", 0.0)
    async with two() as (here, there):
        first = await ask(here, ASKED)
        await on_the_log(here, 1)
        rewritten = [first[0], {"role": "assistant", "content": "41"}, MORE]
        for key, messages in ((OTHERS_KEY, first), ("a-key-of-the-client", rewritten)):
            await ask(there, messages, key=key)
        sessions = there.gateway._sessions
        assert [len(sessions.open(owner, "s", 0).session.samples) for owner in ("me", "you")] == [1, 1]
        assert [sessions.open(owner, "s", 0).session.turns for owner in ("me", "you")] == [1, 1]
        # A few times in vain, and nothing is looked for any more.
        for number in range(turn_finder.MOST_LOOKS):
            await ask(there, [first[0], {"role": "assistant", "content": str(number)}, MORE])
        assert sessions.open("me", "s", 0).fruitless == turn_finder.MOST_LOOKS


async def test_a_broker_that_hangs_delays_no_answer_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_finder, "LIMIT_S", 0.05)
    monkeypatch.setattr(turn_finder, "MOST_HANGING", 2)
    looks, freed = 0, asyncio.Event()

    async def hang(*_: object) -> None:
        nonlocal looks
        looks += 1
        while not freed.is_set():
            # A client of Kafka that is closed waits for its broker, too.
            with contextlib.suppress(asyncio.CancelledError):
                await freed.wait()

    async with two() as (here, there):
        monkeypatch.setattr(there.gateway._bus, "offsets_from", hang)
        first = await ask(here, ASKED)
        async with asyncio.timeout(60):
            for number in range(turn_finder.MOST_LOOKS + 1):
                async with there.client(session=f"s-{number}") as client:
                    await say(client, first)
        assert looks == 2
        freed.set()


async def test_a_look_that_fails_does_not_count_as_one_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two() as (here, there):
        first = await ask(here, ASKED)
        await on_the_log(here, 1)
        with monkeypatch.context() as patched:
            patched.setattr(there.gateway._bus, "offsets_from", refuse)
            for number in range(turn_finder.MOST_LOOKS):
                await ask(there, [first[0], {"role": "assistant", "content": str(number)}, MORE])
        await ask(there, first)
        assert there.gateway._sessions.open("me", "s", 0).fruitless == 0
        assert "user: 6*7=\nassistant: 42\nuser: Sure?" in "".join(map(chr, here.engines["explorer-0"].prompts[-1]))
        async with aiohttp.ClientSession() as http, http.get(f"{there.url}/metrics") as response:
            assert "gateway_recalled_answers_total 1.0" in await response.text()


async def ask_alone(gateway: Rig, **how: Any) -> str:
    """Asks without a session; returns the id of the answer."""
    async with gateway.client() as client:
        answer = await say(client, **how)
    return str(answer.id)


async def test_an_answer_without_a_session_is_rewarded_at_any_gateway_and_contributed_once() -> None:
    async with two() as (here, there), FakeCoordinator(FakeBus(here.log)).running() as coordinator:
        answers = [await ask_alone(here, n=2), await ask_alone(here)]
        async with here.client() as client:
            answers.append((await client.completions.create(model="policy", prompt="6*7=")).id)
        await on_the_log(here, 3)
        for counted in (3, 0):
            assert (await there.post("/feedback", msg_ids=answers, reward=1))[1]["counted"] == counted
        await here.post("/feedback", msg_ids=answers, reward=1)
        samples, others = (
            [
                (one.prompt_token_ids, one.response_token_ids, one.logprobs, one.mask, one.versions, one.reward)
                for task in gateway.gateway._sessions.pending("me")
                for one in task.rollouts
            ]
            for gateway in (there, here)
        )
        assert samples == others
        assert (await there.post("/commit"))[1]["contributed"] == {
            f"me/{answer}": n for answer, n in zip(answers, (2, 1, 1), strict=True)
        }
        status, body = await here.post("/commit")
        assert (status, {why.partition(":")[0] for why in body["refused"].values()}) == (409, {"known_task"})
        assert len(coordinator.contributed) == 3


async def test_an_answer_counts_once_under_whatever_tasks_two_gateways_were_told() -> None:
    async with two() as (here, there), FakeCoordinator(FakeBus(here.log)).running() as coordinator:
        answers = [await ask_alone(here), await ask_alone(here)]
        await on_the_log(here, 2)
        for gateway, task in ((there, "one"), (here, "other")):
            told = await gateway.post("/feedback", msg_ids=answers, reward=1, task_id=task)
            assert told[1]["counted"] == 2
        assert (await there.post("/commit"))[1]["contributed"] == {"one": 2}
        status, body = await here.post("/commit")
        assert (status, body["refused"]["other"].partition(":")[0]) == (409, "known_task")
        assert sorted(coordinator.contributed["one"].covers or ()) == sorted(f"me/{answer}" for answer in answers)


async def test_unknown_answers_of_one_client_do_not_hold_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand ids are a few looks, and feedback of another client is taken between them."""
    monkeypatch.setattr(turn_finder, "_AGAIN_S", 0.0)
    async with two() as (here, there):
        answer = await ask_alone(here)
        await on_the_log(here, 1)
        look, looks, at_once, most = turn_finder.TurnFinder._look, 0, 0, 0

        async def counted(*arguments: Any) -> Any:
            nonlocal looks, at_once, most
            looks, at_once = looks + 1, at_once + 1
            most = max(most, at_once)
            try:
                await asyncio.sleep(0)
                return await look(*arguments)
            finally:
                at_once -= 1

        monkeypatch.setattr(turn_finder.TurnFinder, "_look", counted)
        unknown = [new_answer_id("chatcmpl-", time.time()) for _ in range(1000)]
        several = (there.post("/feedback", OTHERS_KEY, msg_ids=unknown, reward=1) for _ in range(4))
        *refused, taken = await asyncio.gather(*several, there.post("/feedback", msg_ids=[answer], reward=1))
        assert ([status for status, _ in refused], taken[1]["counted"]) == ([404] * 4, 1)
        assert looks <= 4 * 2 * TURNS.partitions + 2
        assert most <= turn_finder.MOST_OF_ONE + 1


async def test_what_nobody_answered_is_unknown_and_without_a_broker_all_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two() as (here, there):
        async with here.client(session="s") as client:
            of_a_session = (await say(client)).id
        altered = await ask_alone(here, response_format={"type": "json_object"})
        answer = await ask_alone(here)
        await on_the_log(here, 2)
        unknown = [new_answer_id("chatcmpl-", time.time()), "chatcmpl-1", of_a_session, altered]
        for one in unknown:
            assert (await there.post("/feedback", msg_ids=[answer, one], reward=1))[0] == 404
        assert (await there.post("/feedback", OTHERS_KEY, msg_ids=[answer], reward=1))[0] == 404
        assert there.gateway._sessions.pending("me") == []
    async with two() as (here, there):
        answer = await ask_alone(here)
        await on_the_log(here, 1)
        with monkeypatch.context() as patched:
            patched.setattr(there.gateway._bus, "offsets_from", refuse)
            assert (await there.post("/feedback", msg_ids=[answer], reward=1))[0] == 503
        assert (await there.post("/feedback", msg_ids=[answer], reward=1))[1]["counted"] == 1
