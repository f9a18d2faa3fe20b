"""The table of ``docs/sizing.md``: what ``trinity-bus size`` says of three meshes.

``python -m tools.render_sizing`` writes it into the page, between its two marks; with ``--check`` it says whether the
page is current and exits with 1 where it is not.
"""

import sys
from pathlib import Path
from typing import Final

from tools.generated import write_or_check_part
from trinity_bus.config import CoordinatorSettings, MeshSettings, SynchronizerSettings
from trinity_bus.config.sections import Sections
from trinity_bus.sizing.fleet import SizeFigure, SizingInput, sized
from trinity_bus.sizing.gpus import GPUS
from trinity_bus.sizing.models import MODELS

PAGE: Final = Path(__file__).parents[1] / "docs" / "sizing.md"
_MESHES: Final = ((8, "8B"), (64, "32B"), (1024, "235B-A22B"))


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
    return "\n".join(rows)


def _cell(figure: SizeFigure) -> str:
    text = f"{figure.shown} {figure.unit}".strip()
    return f"**{text}**" if figure.warning else text


def main() -> int:
    """Write the page, or check that it is current."""
    return write_or_check_part("render_sizing", __doc__ or "", PAGE, "sizes", table())


if __name__ == "__main__":
    sys.exit(main())
