import os

import pytest

from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.launch import prepare_environment


@pytest.mark.parametrize(("settings", "threads"), [({}, "1"), ({"cpu_threads": 1}, "1"), ({"cpu_threads": 2}, "2")])
def test_the_setting_of_threads_wins_over_the_environment_of_services(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], threads: str
) -> None:
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "1"})
    prepare_environment(ExplorerSettings(**settings))
    assert os.environ["OMP_NUM_THREADS"] == threads
