"""The lifecycle of a batch.

::

           +------------------ ended before it was full ------------------+
           |                                                              v
        PENDING -----> RUNNING ----- every task has a result -----> FINALIZING -- its turn has come --> FINALIZED
           |              |                                               |
           +--------------+-----------------------------------------------+--- given up --------------> ABORTED

==========  ==========================================  ======================================================
from        to                                          when
==========  ==========================================  ======================================================
PENDING     RUNNING                                     all its tasks are accepted, and (train batches) fewer than
                                                        ``max_inflight_batches`` are open; a train batch gets its
                                                        sequence number now, of those of one producer the one that
                                                        was submitted first. An open batch at once
PENDING     FINALIZING                                  it has no tasks and its client asks for its end; or it is an
                                                        eval batch, and the time of a client that waits is up. It has
                                                        no sequence number, and nothing to train on
RUNNING     FINALIZING                                  the last task got its result: completed, partial, failed, or
                                                        cut off because enough others were finished
FINALIZING  FINALIZED                                   every train batch of a lower sequence is FINALIZED; an eval
                                                        batch at once
PENDING,    ABORTED                                     it is given up, with a reason: by a client, or unfilled while
RUNNING,                                                too much waits in batches that are not full. The train batches
FINALIZING                                              behind it move down by one in the sequence
==========  ==========================================  ======================================================

FINALIZED and ABORTED are final. A batch waits in PENDING until it is full, and only then takes a place in the order of
training: so a batch whose last task never comes holds up nobody but itself. An open batch, which has no number of
tasks, is never FINALIZING: it ends when its client aborts it.
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
