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


@pytest.mark.parametrize(
    ("environment", "launch"),
    [
        (TORCHRUN, Launch(rank=5, world_size=8, local_rank=1, local_world_size=4, restarts=0)),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, Launch(1, 2, 1, 2, 0)),
        ({}, None),
        ({"WORLD_SIZE": "1", "RANK": "0"}, None),
    ],
)
def test_a_process_learns_who_it_is(environment: dict[str, str], launch: Launch | None) -> None:
    """All are on one machine unless it is said; one process is alone."""
    found = launch_of(environment)
    assert found == launch
    assert found is None or found.spans_machines == (environment is TORCHRUN)


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
