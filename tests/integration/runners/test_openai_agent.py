"""An agent with OpenAI's client in a real runner: its samples are the tokens that the engine drew."""

import pytest

from schemas import ExperienceGroup
from schemas.codec import decode
from tests.integration.runners.test_runners import rig
from tests.support.fakes.engine import TOKENIZER
from trinity_bus.config import ExplorerSettings, Settings
from trinity_bus.runners.fork_server import ForkServer

pytestmark = pytest.mark.integration

MODULE = "tests.support.fakes.openai_agent"


async def test_an_agent_that_someone_else_wrote_runs_in_a_runner() -> None:
    settings = Settings(explorer=ExplorerSettings(workflow_modules=MODULE))
    with ForkServer(settings, tokenizer=TOKENIZER) as fork_server:
        async with rig(fork_server) as all_of_it:
            result = await all_of_it.begin("asks-twice", repeat_times=3)
    group = decode(result.group, ExperienceGroup)
    assert group.rewards.tolist() == [1.0, 1.0, 1.0]
    assert group.run_ids.tolist() == [0, 1, 2]
    assert [metrics["turns"] for metrics in group.metrics] == [2.0, 2.0, 2.0]
    for sample in group.samples():
        told = "\nuser: Sure?\nassistant: "
        assert "".join(map(chr, sample.tokens)) == f"user: 6*7=\nassistant: 42{told}42"
        assert sample.mask.tolist() == [True] * 2 + [False] * len(told) + [True] * 2
        assert sample.turn_starts is not None
        assert sample.turn_starts.tolist() == [0, 2 + len(told)]
