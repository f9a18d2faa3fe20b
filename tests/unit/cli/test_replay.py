from pathlib import Path

import pytest

from trinity_bus.errors import ConfigError
from workers.cli.training.replay import beside, replay


@pytest.mark.parametrize("name", ["replay-12", "slower", "trainer-0/grpo", "../../elsewhere", ".."])
def test_a_replay_lies_beside_the_live_run(name: str) -> None:
    folder = beside(Path("/runs/checkpoints"), name)
    assert folder.parent.resolve() == Path("/runs")
    assert folder.name.startswith("checkpoints-")


def test_a_launcher_may_not_start_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE=2: .* run `trinity-bus replay` without torchrun"):
        replay(from_step=3)
