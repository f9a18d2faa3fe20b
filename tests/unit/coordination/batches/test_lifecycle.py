"""The table of a batch's lifecycle, row by row."""

import pytest

from schemas import BatchLifecycleState as State
from trinity_bus.coordination import TRANSITIONS, IllegalTransitionError
from trinity_bus.coordination.batches.lifecycle import moved

LEGAL = {
    (State.PENDING, State.RUNNING),
    (State.PENDING, State.FINALIZING),
    (State.PENDING, State.ABORTED),
    (State.RUNNING, State.FINALIZING),
    (State.RUNNING, State.ABORTED),
    (State.FINALIZING, State.FINALIZED),
    (State.FINALIZING, State.ABORTED),
}


@pytest.mark.parametrize("source", State)
@pytest.mark.parametrize("target", State)
def test_exactly_the_legal_transitions_can_be_made(source: State, target: State) -> None:
    if (source, target) in LEGAL:
        assert moved(source, target) is target
    else:
        with pytest.raises(IllegalTransitionError, match=f"{source} cannot become {target}"):
            moved(source, target)


def test_the_table_covers_every_state_and_cannot_be_changed() -> None:
    assert set(TRANSITIONS) == set(State)
    with pytest.raises(TypeError):
        TRANSITIONS[State.FINALIZED] = frozenset(State)  # type: ignore[index]
