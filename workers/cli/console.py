"""Where commands print: as wide as the terminal; as wide as what is printed where there is none."""

import os
import sys
from typing import Final

from rich.console import Console

UNFOLDED: Final = 10_000
"""Columns of a file or a pipe: a table there is for ``grep`` and ``awk``, so that its rows are lines."""


def console(*, stderr: bool = False) -> Console:
    """Return a console on standard output, or on standard error. The environment's ``COLUMNS`` wins."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() or "COLUMNS" in os.environ else UNFOLDED)
