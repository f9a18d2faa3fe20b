"""What every benchmark can be told, and what of it there is here to be measured."""

import argparse
from pathlib import Path
from typing import Final

from trinity_bus.config import Settings
from workers.demo.model import SMOLLM2, pretrained_folder

SHORT_LIMIT_S: Final = 280.0
"""What a short form may take on two cores, seconds."""
SHORT: Final = f"a little of it, in {SHORT_LIMIT_S:g} s at most on two cores; its figures say nothing"
TOY: Final = "toy"
REAL: Final = "SmolLM2"
"""A model as people have them: 135 M parameters, a vocabulary of 49,152."""


def parser(document: str | None, *, subjects: bool = False) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--short", action="store_true", help=SHORT)
    made.add_argument("--results", type=Path, help="folder for the figures; with --short they go nowhere else")
    if subjects:
        made.add_argument("--subjects", nargs="+", choices=(TOY, REAL), help="default: both, or with --short the toy")
    return made


def real_model() -> Path | None:
    """Return the folder of the real model; None, and a line that says so, where it is not there."""
    folder = pretrained_folder(Settings())
    if (folder / "config.json").is_file():
        return folder
    print(f"{SMOLLM2} is left out: it is not in {folder}. `tools/smollm2.sh` makes it.", flush=True)
    return None


def subjects_of(options: argparse.Namespace) -> dict[str, Path | None]:
    asked = options.subjects or ([TOY] if options.short else [TOY, REAL])
    found = {subject: real_model() if subject == REAL else None for subject in asked}
    return {subject: folder for subject, folder in found.items() if folder is not None or subject == TOY}
