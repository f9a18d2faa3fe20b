"""Where a replay's checkpoints lie."""

from pathlib import Path

import pytest

from workers.cli.replay import beside


@pytest.mark.parametrize("name", ["replay-12", "slower", "trainer-0/grpo", "../../elsewhere", ".."])
def test_a_replay_lies_beside_the_live_run(name: str) -> None:
    folder = beside(Path("/runs/checkpoints"), name)
    assert folder.parent.resolve() == Path("/runs")
    assert folder.name.startswith("checkpoints-")
