"""What every benchmark can be told."""

import argparse
from pathlib import Path


def parser(document: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows ``--short`` and ``--results``; a benchmark adds what is its own.

    Args:
        document: Of the benchmark's module.
    """
    made = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--short", action="store_true", help="a little of it, in seconds; its figures say nothing")
    made.add_argument("--results", type=Path, help="folder for the figures; with --short they go nowhere else")
    return made
