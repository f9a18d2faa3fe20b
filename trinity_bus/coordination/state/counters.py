"""Numbers that only grow, but for one: the ``books`` entry of the changelog."""

from msgspec import field

from trinity_bus.coordination.state.tables import Row


class Counters(Row):
    tasks: int = 0
    batches: int = 0
    unnamed: int = 0
    filled: int = 0
    sequence: int = 0  # of the train batch that was admitted last; smaller by one when an admitted one is aborted
    finalized: int = 0  # sequence of the train batch that was finalized last
    timed_attempts: int = 0  # attempts at train tasks whose time was taken
    attempt_seconds: float = 0.0  # that they took together
    # Of producers that compete for slots, see coordination.batches.shares.
    turns: dict[str, int] = field(default_factory=dict)
    training_turns: dict[str, int] = field(default_factory=dict)  # of those that compete for places in training
    drained: int = 0  # open train batches that were ended when all of their tasks had, by themselves
