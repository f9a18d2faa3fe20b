"""Numbers that only grow, but for one: the ``books`` entry of the changelog."""

from msgspec import field

from trinity_bus.coordination.state.tables import Row


class Counters(Row):
    """Numbers given out so far, and sums over what has ended."""

    tasks: int = 0
    batches: int = 0
    unnamed: int = 0
    filled: int = 0
    sequence: int = 0
    """Of the train batch that was admitted last; smaller by one when an admitted one is aborted."""
    finalized: int = 0
    """Sequence of the train batch that was finalized last."""
    timed_attempts: int = 0
    """Attempts at train tasks whose time was taken."""
    attempt_seconds: float = 0.0
    """That they took together."""
    turns: dict[str, int] = field(default_factory=dict)
    """Of producers that compete for slots, see :mod:`trinity_bus.coordination.batches.shares`."""
    training_turns: dict[str, int] = field(default_factory=dict)
    """Of those that compete for places in training."""
    drained: int = 0
    """Open train batches that were ended when all of their tasks had, by themselves."""
