from functools import partial

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateway.rig import ADD, ASKED, Rig, rig
from tests.unit.gateway.test_feedback import ask
from trinity_bus.health.process import readings


async def figures(here: Rig) -> dict[str, float]:
    async with aiohttp.ClientSession() as http, http.get(f"{here.url}/metrics") as response:
        assert response.status == 200
        families = text_string_to_metric_families(await response.text())
        return {
            "/".join([sample.name, *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }


async def test_requests_tokens_and_rewards_are_counted() -> None:
    async with rig() as here:
        answer = await ask(here)
        await here.post("/feedback", reward=1, msg_ids=[answer])
        await here.post("/feedback", "wrong", reward=1, msg_ids=[answer])
        found = await figures(here)
        # It is not ready while these stand still.
        assert await readings() == {"explorers' heartbeats": True}
    assert await readings() == {}
    assert found["gateway_requests_total//v1/chat/completions/200"] == 1
    assert (found["gateway_requests_total//feedback/200"], found["gateway_requests_total//feedback/401"]) == (1, 1)
    assert (found["gateway_tokens_total/prompt"], found["gateway_tokens_total/response"]) == (22, 2)
    duration = "gateway_request_duration_seconds"
    assert found[f"{duration}_count//feedback"] == found[f"{duration}_bucket/+Inf//feedback"] == 2
    assert 0 < found[f"{duration}_sum//feedback"] < 600
    assert (found["gateway_ready_samples"], found["gateway_sessions"]) == (1, 1)
    assert (found["gateway_explorer_version/explorer-0"], found["gateway_explorer_requests/explorer-0"]) == (0, 0)
    assert found["gateway_turns_passed_over_total"] == found["gateway_moved_requests_total"] == 0


async def test_rewritten_histories_branches_and_unreadable_calls_are_counted_as_runners_do() -> None:
    async with rig() as here:
        here.engines["explorer-0"].answer = "<tool_call>{</tool_call>"
        async with here.client(session="s-1") as client:
            say = partial(client.chat.completions.create, model="policy", tools=ADD)
            answers = [await say(messages=ASKED) for _ in range(2)]
            changed = [{"role": "user", "content": "Other?"}, *ASKED]
            answers.append(await say(messages=changed))
        await here.post("/feedback", reward=1, session="s-1")
        (contribution,) = here.gateway._sessions.pending("me")
        found = await figures(here)
    for name, count in (("rewrites", 1), ("branches", 1), ("tool_call_flaws", 3)):
        assert found[f"gateway_{name}_total"] == count
        assert [rollout.metrics[name] for rollout in contribution.rollouts] == [count] * 3
    assert [rollout.metrics["turns"] for rollout in contribution.rollouts] == [3.0] * 3
