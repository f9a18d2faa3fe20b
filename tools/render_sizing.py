"""The table of ``docs/sizing.md``: what ``trinity-bus size`` says of three meshes.

``python -m tools.render_sizing`` writes it into the page, between its two marks; with ``--check`` it says whether the
page is current and exits with 1 where it is not.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Final

from trinity_bus.config import CoordinatorSettings, MeshSettings, SynchronizerSettings
from trinity_bus.config.sections import Sections
from trinity_bus.sizing.fleet import SizeFigure, SizingInput, sized
from trinity_bus.sizing.gpus import GPUS
from trinity_bus.sizing.models import MODELS

PAGE: Final = Path(__file__).parents[1] / "docs" / "sizing.md"
_MESHES: Final = ((8, "8B"), (64, "32B"), (1024, "235B-A22B"))
_TABLE: Final = re.compile(r"(<!-- table -->\n).*(<!-- end of table -->\n)", re.DOTALL)


def table() -> str:
    """Return the figures of three meshes side by side, as a table of Markdown."""
    settings = Sections(
        mesh=MeshSettings(max_model_len=16_384, max_tokens=8192),
        synchronizer=SynchronizerSettings(sync_method="memory"),
        coordinator=CoordinatorSettings(batch_size=512, max_staleness=4),
    )
    meshes = [
        sized(
            SizingInput(
                gpus=gpus,
                gpu=GPUS["H100"],
                shape=MODELS[model],
                settings=settings,
                prompt_tokens=512,
                response_tokens=4096,
            )
        )
        for gpus, model in _MESHES
    ]
    rows = [
        "| | " + " | ".join(f"{gpus:,} GPUs, {model}" for gpus, model in _MESHES) + " |",
        "|---|" + "---:|" * len(_MESHES),
        *(f"| {figures[0].name} | " + " | ".join(map(_cell, figures)) + " |" for figures in zip(*meshes, strict=True)),
    ]
    return "".join(f"{row}\n" for row in rows)


def _cell(figure: SizeFigure) -> str:
    text = f"{figure.shown} {figure.unit}".strip()
    return f"**{text}**" if figure.warning else text


def render(page: str) -> str:
    """Return the page with the table as it is now."""
    return _TABLE.sub(lambda found: f"{found[1]}{table()}{found[2]}", page)


def main() -> int:
    """Write the page, or check that it is current."""
    parser = argparse.ArgumentParser(prog="python -m tools.render_sizing", description=__doc__)
    parser.add_argument("--check", action="store_true", help="do not write; exit with 1 if the page is not current")
    page = PAGE.read_text(encoding="utf-8")
    current = render(page)
    if parser.parse_args().check:
        if page != current:
            sys.stderr.write(f"{PAGE} is not current: run `make docs` and commit it\n")
            return 1
        return 0
    PAGE.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
