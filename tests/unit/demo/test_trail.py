from typing import Any

import pytest

from schemas import Task
from schemas.experience import Rollout
from tests.support.narrowing import some
from trinity_bus.chat import renderer_for
from trinity_bus.chat.encoding import load_tokenizer
from trinity_bus.chat.rendering import DrawnTurn
from trinity_bus.testing import ScriptedEngine, run_workflow
from workers.demo.model import make_model
from workers.demo.subjects import CLOSE, OPEN, TOOLS
from workers.demo.trail import Trail, contents

TASK = Task(task_id="t", workflow="trail", prompt="3 1 4", repeat_times=1)
NEXT = contents("3 1 4")
FIRST, SECOND = (f"{OPEN} {drawer} {CLOSE}" for drawer in ("3 1 4", NEXT))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    assert TOOLS.language is not None
    return load_tokenizer(str(make_model(tmp_path_factory.mktemp("model"), 0, TOOLS.language)))


async def run(tokenizer: Any, *answers: str) -> Rollout:
    (rollout,) = await run_workflow(Trail(), TASK, ScriptedEngine(answers, tokenizer=tokenizer))
    return rollout


@pytest.mark.parametrize(
    ("answers", "reward", "errors"),
    [
        ([FIRST, SECOND], 1.0, 0),
        ([FIRST, NEXT], 1 / 2, 0),
        # What was opened is what goes on, even where another drawer was to be.
        ([f"{OPEN} 3 1 5 {CLOSE}", f"{OPEN} {contents('3 1 5')} {CLOSE}"], 5 / 12 + 1 / 2, 0),
        # No second turn: nothing can be called so.
        ([f"{OPEN} 3 1 4"], 4 / 12, 1),
        ([f"{OPEN} 3 1 {CLOSE}"], 3 / 12, 1),
        (["3 1 4"], 0.0, 0),
    ],
)
async def test_each_word_of_each_call_earns_something_and_only_the_whole_trail_everything(
    tokenizer: Any, answers: list[str], reward: float, errors: int
) -> None:
    rollout = await run(tokenizer, *answers)
    assert rollout.reward == pytest.approx(reward)
    assert rollout.metrics["exact"] == float(reward == 1.0)
    assert rollout.metrics["tool_errors"] == errors
    assert rollout.metrics["truncated"] == 0.0


async def test_what_the_tool_says_comes_behind_the_turns_mark_in_tokens_that_are_not_trained_on(tokenizer: Any) -> None:
    rollout = await run(tokenizer, FIRST, SECOND)
    said = tokenizer.convert_ids_to_tokens([*rollout.prompt_token_ids, *rollout.response_token_ids])
    assert " ".join(said) == (f"<bos> <user> 3 1 4 <assistant> {FIRST} <eos> <tool> {NEXT} <assistant> {SECOND} <eos>")
    assert rollout.mask == [True] * 6 + [False] * 5 + [True] * 6
    assert rollout.metrics["tool_calls"] == 2.0
    drawn = DrawnTurn([], tokenizer.encode(FIRST, add_special_tokens=False), ended=True)
    told = some(renderer_for(tokenizer).extension(drawn, [{"role": "tool", "content": NEXT}], None))
    assert tokenizer.decode(told) == f"<eos> <tool> {NEXT} <assistant>"


def test_what_a_drawer_holds_is_the_number_of_another() -> None:
    drawers = [f"{a} {b} {c}" for a in range(10) for b in range(10) for c in range(10)]
    assert {contents(drawer) for drawer in drawers} <= {*drawers}
    assert len({contents(drawer) for drawer in drawers}) > 500
