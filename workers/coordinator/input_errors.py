"""Errors that an input causes: the machine, or writing its effects, raises an exception.

That is a bug of this program, because every record that can be decoded can be handled. But the log keeps the input,
and a program that ends at it would end at it again after each start. So the input is refused as a dead letter with the
traceback::

    exception --> the transaction in progress, if any, is awaited
              --> the machine is discarded, and restored from the entries of the last commit
              --> each input since then, separately:  handle and commit
                                                      exception --> restore again; dead letter, commit

Exceptions of the log or its client are different: it is then unknown what is committed, and the process becomes a
standby again.
"""

import traceback
from collections.abc import Iterable
from pathlib import Path

from schemas.errors import one_line
from trinity_bus.errors import BusError, RecordTooLargeError

REASON = "not_handled"
_FRAMES = 12


def is_input_error(error: BaseException) -> bool:
    if not isinstance(error, Exception):
        return False
    return isinstance(error, RecordTooLargeError) or not isinstance(error, BusError)


def with_traceback(error: BaseException) -> str:
    """Return an error with its traceback, innermost first, as one line."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return f"{one_line(f'{type(error).__name__}: {error}')} at {' < '.join(_places(frames))}"


def _places(frames: Iterable[traceback.FrameSummary]) -> list[str]:
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames][:_FRAMES]
