"""The tables of ``docs/sizing.md``: what ``trinity-bus size`` says of three meshes, and what versions move in three.

``python -m tools.render_sizing`` writes them into the page, between their marks; with ``--check`` it says whether the
page is current and exits with 1 where it is not.
"""

import sys
from pathlib import Path
from typing import Final

from tools.generated import between_marks, write_or_check
from tools.version_sizes import PINNED_BYTES_S, moved
from trinity_bus.config import CoordinatorSettings, MeshSettings, SynchronizerSettings
from trinity_bus.config.sections import Sections
from trinity_bus.sizing.fleet import SizeFigure, SizingInput, sized
from trinity_bus.sizing.hardware import GPUS
from trinity_bus.sizing.memory import MODELS
from trinity_bus.training.families import ModelShape

PAGE: Final = Path(__file__).parents[1] / "docs" / "sizing.md"
_LLAMA_70B: Final = ModelShape(
    layers=80,
    hidden=8192,
    heads=64,
    groups=8,
    head_dim=128,
    intermediate=28_672,
    vocabulary=128_256,
    max_positions=131_072,
    norm_epsilon=1e-5,
    rope_theta=5e5,
    tied=False,
    qk_norm=False,
    qkv_bias=False,
)
_VERSIONS: Final = (
    ("8B on 1 + 1 GPUs", MODELS["8B"], 1, 1, 1),
    ("70B on 8 + 8, engines of 4", _LLAMA_70B, 8, 2, 4),
    ("235B-A22B on 64 + 64, engines of 8", MODELS["235B-A22B"], 64, 8, 8),
)
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


def versions() -> str:
    """Return what a version moves and holds in three meshes, as a table of Markdown."""
    meshes = [
        moved(shape, divided=divided, engines=engines, engine_ranks=ranks)
        for _, shape, divided, engines, ranks in _VERSIONS
    ]
    rows = [
        "| | " + " | ".join(name for name, *_ in _VERSIONS) + " |",
        "|---|" + "---:|" * len(_VERSIONS),
        *(
            f"| {row[0].what} | "
            + " | ".join(f"{one.nbytes / 1e9:,.2f} GB, {one.versions:.2f} V" for one in row)
            + " |"
            for row in zip(*meshes, strict=True)
        ),
    ]
    pauses = (row.nbytes / PINNED_BYTES_S for mesh in meshes for row in mesh if "pause" in row.what)
    return "\n".join([*rows, "| that takes, at 52 GB/s | " + " | ".join(f"{s:.2f} s" for s in pauses) + " |"])


def _cell(figure: SizeFigure) -> str:
    text = f"{figure.shown} {figure.unit}".strip()
    return f"**{text}**" if figure.warning else text


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    for name, content in (("sizes", table()), ("versions", versions())):
        page = between_marks(page, name, "render_sizing", content)
    return write_or_check("render_sizing", __doc__ or "", {PAGE: page})


if __name__ == "__main__":
    sys.exit(main())
