"""The lifecycle of a batch; docs/batches.md says when it goes from one state to another.

::

           +------------------ ended before it was full ------------------+
           |                                                              v
        PENDING -----> RUNNING ----- every task has a result -----> FINALIZING -- its turn has come --> FINALIZED
           |              |                                               |
           +--------------+-----------------------------------------------+--- aborted -------------> ABORTED

A batch waits in PENDING until it is full, and only then takes a place in the order of training: so a batch whose last
task never comes holds up nobody but itself. An open batch, which has no number of tasks, is RUNNING at once and never
FINALIZING: it ends when its client aborts it. FINALIZED and ABORTED are final.
"""

from collections.abc import Mapping
from types import MappingProxyType

from schemas import BatchLifecycleState as State
from trinity_bus.errors import TrinityError

TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.PENDING: frozenset({State.RUNNING, State.FINALIZING, State.ABORTED}),
        State.RUNNING: frozenset({State.FINALIZING, State.ABORTED}),
        State.FINALIZING: frozenset({State.FINALIZED, State.ABORTED}),
        State.FINALIZED: frozenset(),
        State.ABORTED: frozenset(),
    }
)


class IllegalTransitionError(TrinityError, ValueError):
    """A batch cannot go from one state to another."""


def moved(source: State, target: State) -> State:
    """Return the state after a transition; IllegalTransitionError where the table does not hold it."""
    if target not in TRANSITIONS[source]:
        allowed = ", ".join(sorted(TRANSITIONS[source])) or "nothing, it is final"
        raise IllegalTransitionError(f"a batch that is {source} cannot become {target}; only {allowed}")
    return target
