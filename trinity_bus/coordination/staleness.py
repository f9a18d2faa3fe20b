"""Staleness control at admission: how old weights may be for a sample that is going to be trained on.

Versions count trained steps: version ``v`` is the model after ``v`` steps. The train batch of sequence ``k`` is trained
by step ``k``, that is, on top of version ``k - 1``. A sample drawn by version ``v`` is then ``k - 1 - v`` versions old.
It is at most ``s`` old if and only if ``v >= k - 1 - s``. Because explorers only move to newer versions while they
work, asking this of the version at dispatch is enough; a result that says otherwise is not accepted.
"""


def required_version(sequence: int, max_staleness: int) -> int:
    """The oldest version whose samples may be in the train batch of this sequence (1, 2, 3 ...)."""
    return max(0, sequence - 1 - max_staleness)


def staleness(sequence: int, version: int) -> int:
    """How many versions old a sample of ``version`` is when the batch of this sequence is trained."""
    return sequence - 1 - version
