"""What a launcher says of a process is read, and nothing else is taken for it."""

import pytest

from trinity_bus.training.errors import ParallelError
from trinity_bus.training.ranks.launch import Launch, launch_of

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_MAX_RESTARTS": "0",
}


def test_a_process_learns_who_it_is() -> None:
    launch = launch_of(TORCHRUN)
    assert launch == Launch(rank=5, world_size=8, local_rank=1, local_world_size=4, restarts=0)
    assert launch.spans_machines


def test_all_are_on_one_machine_unless_it_is_said() -> None:
    launch = launch_of({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"})
    assert launch == Launch(rank=1, world_size=2, local_rank=1, local_world_size=2, restarts=0)
    assert not launch.spans_machines


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_one_process_is_alone(environment: dict[str, str]) -> None:
    assert launch_of(environment) is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE='four': expected a number"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK='-1': expected a number"),
        ({"RANK": "8"}, "RANK=8 with WORLD_SIZE=8: ranks lie below it"),
    ],
)
def test_what_is_no_rank_is_refused(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(ParallelError, match=said):
        launch_of({**TORCHRUN, **wrong})
