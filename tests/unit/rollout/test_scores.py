import asyncio
import sys
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from schemas import Task
from schemas.experience import Rollout
from trinity_bus.inference.errors import UnknownPoolError
from trinity_bus.rollout.scores import (
    RewardError,
    exact,
    gated,
    judged,
    last_block,
    longer_than,
    matches,
    mathematics,
    numeric,
    passes_tests,
    shaped,
    valid_json,
    weighted,
)
from trinity_bus.rollout.workflow import RolloutContext
from trinity_bus.rollout.workflows import Answered, Reward, run_single_turn
from trinity_bus.sandbox import SandboxLimits
from trinity_bus.testing import ScriptedEngine, run_workflow

SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
SPEAKS = "Say:\n```python\ndef add(a, b):\n    return a + b\n```\n"


async def score(reward: Any, response: str, answer: str = "", *, ended: bool = True) -> float:
    return float(await reward(Answered(response, answer, ended, "Why?")))


@pytest.mark.parametrize(
    ("reward", "response", "answer", "value"),
    [
        (exact(), " Paris\n", "Paris", 1.0),
        (exact(), "In Paris", "Paris", 0.0),
        (mathematics(), r"so \boxed{\frac{1}{2}}", "#### 0.5", 1.0),
        (mathematics(), "so it is 3", "0.5", 0.0),
        (numeric(), "so it is 3.5", "7/2", 1.0),
        (numeric(), "so it is 3.51", "3.5", 0.0),
        (numeric(relative=0.01), "so it is 3.51", "3.5", 1.0),
        (numeric(absolute=0.1), "-0.05", "0", 1.0),
        (numeric(), "I do not know", "3", 0.0),
        (matches(r"<answer>.+</answer>"), "so\n<answer>4\n</answer> yes", "", 1.0),
        (matches(r"<answer>.+</answer>", whole=True), "so <answer>4</answer>", "", 0.0),
        (longer_than(2), "one two", "", 0.0),
        (longer_than(2, by=4), "one two three", "", 0.25),
        (longer_than(2, by=4), "one " * 100, "", 1.0),
        (valid_json(SCHEMA), '{"a": 1}', "", 1.0),
        (valid_json(SCHEMA), 'See:\n```json\n{"a": 1}\n```', "", 1.0),
        (valid_json(SCHEMA), '{"a": "1"}', "", 0.0),
        (valid_json(SCHEMA), "[" * 100_000, "", 0.0),
        (valid_json({}), '{"a": NaN}', "", 0.0),
        (valid_json({}), "[Infinity, -Infinity]", "", 0.0),
        (valid_json({}), '```json\n{"a": NaN}\n```', "", 0.0),
        (
            valid_json(SCHEMA),
            'See:\r\n```JSON\r\n{"a": 1}\r\n```\r\nIt is made by\r\n```python\r\nmake()\r\n```',
            "",
            1.0,
        ),
        (valid_json(SCHEMA), '{"a": 1, "b": "```\\n1\\n```"}', "", 1.0),
        (valid_json(SCHEMA), 'See:\n~~~\n{"a": 1}\n~~~', "", 1.0),
        (weighted((1.0, numeric()), (-0.5, longer_than(1))), "it is 3", "3", 0.5),
        (gated(matches("is"), numeric(), otherwise=-1.0), "it is 3", "3", 1.0),
        (gated(matches("was"), numeric(), otherwise=-1.0), "it is 3", "3", -1.0),
        (shaped(longer_than(2, by=4), lambda value: -(value**2)), "one two three", "", -0.0625),
    ],
)
async def test_rewards(reward: Any, response: str, answer: str, value: float) -> None:
    assert await score(reward, response, answer) == value
    # What was cut is too long.
    assert await score(longer_than(100), response, ended=False) == 1.0


async def test_what_each_part_gave_becomes_a_metric_of_its_run() -> None:
    reward = weighted((1.0, gated(matches("is"), numeric())), (-0.5, longer_than(1)), (0.0, matches("!")))

    class Parts:
        name = "parts"

        async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
            return await run_single_turn(task, ctx, reward)

    task = Task(workflow="parts", prompt="1 + 2?", answer="3", repeat_times=2)
    first, second = await run_workflow(Parts(), task, ScriptedEngine(["it is 3", "no"]))
    parts = {name: value for name, value in first.metrics.items() if name.startswith("reward/")}
    assert first.reward == first.metrics["reward"] == 0.5
    ones = ("matches", "numeric", "gated", "longer_than")
    assert parts == {**{f"reward/{name}": 1.0 for name in ones}, "reward/matches_2": 0.0}
    # What was not asked for is not told.
    assert "reward/numeric" not in second.metrics


def in_turn(value: float, *, after: asyncio.Event, then: asyncio.Event) -> Reward:
    """Give a value once something has happened, and tell of it."""

    async def judge(said: Answered) -> float:
        del said
        await after.wait()
        then.set()
        return value

    return judge


async def test_parts_are_told_by_their_places_whichever_is_judged_first() -> None:
    now, later = asyncio.Event(), asyncio.Event()
    now.set()
    first, second = in_turn(0.25, after=later, then=now), in_turn(0.75, after=now, then=later)
    said = Answered("so")
    await weighted((1.0, gated(matches("so"), first)), (1.0, gated(matches("so"), second)))(said)
    assert (said.metrics["reward/in_turn"], said.metrics["reward/in_turn_2"]) == (0.25, 0.75)
    # One that is not judged keeps its name.
    said = Answered("it is 3", "3")
    await weighted((1.0, gated(matches("was"), numeric())), (1.0, gated(matches("is"), numeric())))(said)
    assert {name for name in said.metrics if "numeric" in name} == {"reward/numeric_2"}


@pytest.mark.parametrize(
    ("response", "tests", "value"),
    [
        (SPEAKS, "assert add(1, 2) == 3", 1.0),
        (SPEAKS, "assert add(1, 2) == 4", 0.0),
        ("```python\nraise SystemExit(0)\n```", "assert False", 0.0),
        ("```python\nprint('passed'); import os; os._exit(0)\n```", "assert False", 0.0),
        ("```python\nwhile True: pass\n```", "", 0.0),
        ("no code at all", "", 0.0),
        (SPEAKS + "It says:\n```\n3\n```\n", "assert add(1, 2) == 3", 1.0),
        (SPEAKS + "Try it:\n```python\nprint(add(1, 2))\n```\n", "assert add(1, 2) == 3", 1.0),
        (SPEAKS + "Run it:\n```bash\npython add.py\n```", "assert add(1, 2) == 3", 1.0),
    ],
)
async def test_code_is_judged_in_a_sandbox(response: str, tests: str, value: float) -> None:
    assert await score(passes_tests(sys.executable, limits=SandboxLimits(wall_s=3)), response, tests) == value


@pytest.mark.parametrize(
    "fence",
    [
        "```python\n{}\n```",
        "```Python\n{}\n```",
        "```python3\n{}\n```",
        "```py\n{}\n```",
        "```{{.python .numberLines}}\n{}\n```",
        '```python title="add.py"\n{}\n```',
        "``` python\n{}\n```",
        "````python\n{}\n````",
        "~~~python\n{}\n~~~",
        "```python  \r\n{}\r\n```\r\nso",
        "```python\n{}\n```\nwhich prints\n```text\n3\n```",
        "```python\n{}\n```\nUse:\n```python\nadd(1, 2)\n```",
        "First\n```python\ndef add(): 1\n```\nBetter\n```python\n{}\n```",
        "```python\n{}```",
        "```python\n{}",
        "```\n{}\n```",
        "```c++\nint x;\n```\n```python\n{}\n```",
    ],
)
def test_the_code_of_a_response_is_found_however_it_is_fenced(fence: str) -> None:
    code = "def add(a, b):\n    return a + b"
    assert last_block(fence.format(code)).strip() == code


async def test_a_reward_that_cannot_be_found_out_is_a_failure_and_not_zero() -> None:
    with pytest.raises(RewardError, match="'three' is no number"):
        await score(numeric(), "3", "three")
    with pytest.raises(RewardError, match="is no number"):
        await score(weighted((1.0, matches("3")), (1.0, numeric())), "3", "three")
    with pytest.raises(RewardError, match="no-such-python' cannot be run"):
        await score(passes_tests("no-such-python"), SPEAKS)
    with pytest.raises(RewardError, match="this is no JSON schema"):
        valid_json({"type": "so"})


class Judge:
    """Stands in for a model behind a gateway: says what it is told to, and notes what it was asked."""

    def __init__(self) -> None:
        self.says, self.status, self.asked = "Fine. Score: 3\nNo: Score: **8**", 200, ""

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert (body["model"], request.headers["Authorization"]) == ("judge", "Bearer secret")
        self.asked = body["messages"][0]["content"]
        return web.json_response({"choices": [{"message": {"content": self.says}}]}, status=self.status)


async def test_another_model_judges_and_what_it_does_not_say_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = judged("${question} Is ${response} as good as ${answer}? $$", model="judge", timeout_s=5)
    with pytest.raises(RewardError, match="JUDGE_URL is not set"):
        await score(reward, "a", "b")
    judge, app = Judge(), web.Application()
    app.router.add_post("/v1/chat/completions", judge.answer)
    async with TestServer(app) as server:
        monkeypatch.setenv("JUDGE_URL", f"{server.make_url('/v1')}/")
        monkeypatch.setenv("JUDGE_KEY", "secret")
        assert await score(weighted((2.0, reward)), "a $b", "c") == 1.6
        assert judge.asked == "Why? Is a $b as good as c? $"
        for judge.says, judge.status, message in (
            ("I cannot say", 200, "gave no score from 0 to 10: 'I cannot say'"),
            ("Score: 11", 200, "gave no score"),
            ("Score: 8", 503, "refuses: 503"),
        ):
            with pytest.raises(RewardError, match=message):
                await score(reward, "a", "b")
    with pytest.raises(RewardError, match="does not answer: ClientConnectorError"):
        await score(reward, "a", "b")
    with pytest.raises(ValueError, match="a dollar sign is"):
        judged("$5", model="judge")
    for pool, model in ((None, ""), ("judge", "judge")):
        with pytest.raises(ValueError, match="one of the two"):
            judged("${response}", pool=pool, model=model)


class Judged:
    """A response, judged by the pool ``judge``."""

    name = "judged"

    async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
        return await run_single_turn(task, ctx, judged("${question} ${response} ${answer}", pool="judge"))


async def test_a_pool_of_the_mesh_judges_and_what_it_does_not_say_is_a_failure() -> None:
    task = Task(task_id="t", workflow="judged", prompt="Why?", answer="So.")
    judge = ScriptedEngine(["Well. Score: 5", "I cannot say"])
    (rollout,) = await run_workflow(Judged(), task, ScriptedEngine(["Because."]), pools={"judge": judge})
    assert rollout.reward == 0.5
    assert judge.requests[0].prompt == "user: Why? Because. So.\nassistant: "
    with pytest.raises(RewardError, match="gave no score"):
        await run_workflow(Judged(), task, ScriptedEngine(["Because."]), pools={"judge": judge})
    with pytest.raises(UnknownPoolError):
        await run_workflow(Judged(), task, ScriptedEngine(["Because."]))
    with pytest.raises(RewardError, match="ctx is not set"):
        await judged("${response}", pool="judge")(Answered("a"))
