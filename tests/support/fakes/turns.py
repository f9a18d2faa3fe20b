"""Turns of one run, as an explorer would have written them."""

from schemas import Answer, Turn


def turn(number: int, attempt: int, after: int = 0, answers: list[Answer] | None = None) -> Turn:
    """Return a turn.

    Args:
        number: In its run.
        attempt: That has completed it.
        after: The attempt that has completed the one before; 0 for the first.
        answers: What was answered in it.
    """
    return Turn(
        task_id="t",
        attempt=attempt,
        run_id=0,
        number=number,
        after=after,
        workflow="agent",
        explorer="e",
        incarnation="i",
        answers=answers or [],
    )
