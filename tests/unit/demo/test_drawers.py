"""The workflow of the demo ``tools``: what each way of using the tool earns, with the demo's own words and template."""

from typing import Any

import pytest

from schemas import Task
from trinity_bus.rollout import RolloutContext
from trinity_bus.rollout.tokenizer import load_tokenizer
from trinity_bus.testing import ScriptedEngine
from workers.demo.courses import TOOLS
from workers.demo.drawers import CALL, Drawers, contents
from workers.demo.model import make_model

OPEN, CLOSE = CALL
TOLD = contents("3 1 4")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(str(make_model(tmp_path_factory.mktemp("model"), 0, TOOLS.language)))


async def run(tokenizer: Any, *answers: str) -> Any:
    engine = ScriptedEngine(answers, tokenizer=tokenizer)
    context = RolloutContext(engine=engine, tokenizer=tokenizer, repeat_times=1)
    (rollout,) = await Drawers().run(Task(workflow="drawers", prompt="open 3 1 4"), context)
    return rollout


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        ([f"{OPEN} 3 1 4 {CLOSE}", TOLD], 1.0),
        ([f"{OPEN} 3 1 4 {CLOSE}", f"{TOLD} {TOLD}"], 1 / 2 + 2 / 10),
        ([f"{OPEN} 3 1 5 {CLOSE}", contents("3 1 5")], 5 / 12 + 1 / 2),
        ([f"{OPEN} 3 1 {CLOSE}", TOLD], 3 / 12),
        ([f"{OPEN} 3 1 4", TOLD], 4 / 12),
        ([TOLD], 0.0),
    ],
)
async def test_each_part_of_the_way_earns_something_and_only_the_whole_way_everything(
    tokenizer: Any, answers: list[str], reward: float
) -> None:
    rollout = await run(tokenizer, *answers)
    assert rollout.reward == pytest.approx(reward)
    assert rollout.metrics["exact"] == float(reward == 1.0)


async def test_the_tools_answer_comes_in_tokens_that_are_not_trained_on(tokenizer: Any) -> None:
    rollout = await run(tokenizer, f"{OPEN} 3 1 4 {CLOSE}", TOLD)
    said = tokenizer.convert_ids_to_tokens([*rollout.prompt_token_ids, *rollout.response_token_ids])
    assert " ".join(said) == (
        f"<bos> <user> open 3 1 4 <assistant> {OPEN} 3 1 4 {CLOSE} <eos> <tool> {TOLD} <assistant> {TOLD} <eos>"
    )
    assert rollout.mask == [True] * 6 + [False] * 4 + [True] * 3
