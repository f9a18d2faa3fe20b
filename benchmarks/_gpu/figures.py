"""The file to which a part writes each figure as soon as it has it: one JSON object a line.

What a part had found is there when it crashes: ``{"row": ...}``, ``{"machine": ...}``, or ``{"skipped": why}``,
which is the last one.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks._report import Row


class NotHereError(Exception):
    """This machine lacks what the part measures; the reason is its text."""


class Figures:
    def __init__(self, path: Path) -> None:
        self._path = path

    def row(self, metric: str, value: float, unit: str, **more: Any) -> None:
        self.say({"row": asdict(Row(metric, value, unit, **more))})

    def say(self, what: Mapping[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(what) + "\n")
