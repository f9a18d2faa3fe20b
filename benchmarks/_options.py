"""What every benchmark can be told."""

import argparse
from pathlib import Path
from typing import Final

SHORT_LIMIT_S: Final = 280.0
"""What a short form may take on two cores, seconds."""
SHORT: Final = f"a little of it, in {SHORT_LIMIT_S:g} s at most on two cores; its figures say nothing"


def parser(document: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows ``--short`` and ``--results``; a benchmark adds what is its own.

    Args:
        document: Of the benchmark's module.
    """
    made = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--short", action="store_true", help=SHORT)
    made.add_argument("--results", type=Path, help="folder for the figures; with --short they go nowhere else")
    return made
