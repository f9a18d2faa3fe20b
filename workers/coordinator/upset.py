"""What the coordinator does when an input upsets it: the machine, or the writing of what follows, raises.

That is a fault of this program: what can be read can be decided upon. But the log has the input for good, and a program
that ends at it ends at it again after each start. So the input is refused, as a dead letter with the traceback, and all
is as it was before it::

    raised --> the transaction under way, if any, is waited for
           --> the machine is forgotten, another restored from the entries of the last commit
           --> every input since then, by itself:  decide and commit
                                                   raised --> restored again; dead letter, committed
           --> on as usual

Nothing is guessed about which input it was, and what was decided about the others stands on its own again. What the log
or its client library raises is another matter, whatever it is: then nothing is known of what is committed, and the
process stands by again.
"""

import traceback
from collections.abc import Iterable
from pathlib import Path

from schemas.errors import one_line
from trinity_bus.errors import BusError, RecordTooLargeError

REASON = "not_handled"
_FRAMES = 12


def is_upset(error: BaseException) -> bool:
    """Whether an error is due to what was decided upon, rather than to the log or to somebody who stops this."""
    if not isinstance(error, Exception):
        return False
    return isinstance(error, RecordTooLargeError) or not isinstance(error, BusError)


def told(error: BaseException) -> str:
    """Return an error with its traceback, innermost first, as one line."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return f"{one_line(f'{type(error).__name__}: {error}')} at {' < '.join(_places(frames))}"


def _places(frames: Iterable[traceback.FrameSummary]) -> list[str]:
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames][:_FRAMES]
