"""The recipes, and rows that stand in for their data sets: a few, with the columns that they name."""

import json
import re
import tomllib
from pathlib import Path
from string import Template

import pyarrow as pa
from pyarrow import parquet

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path.parent for path in (ROOT / "recipes").glob("*/mesh.toml"))


def stand_in(recipe: Path, folder: Path) -> Path:
    """Write a description like that of a recipe, and few short rows in the places of its files."""
    text = (recipe / "tasks.toml").read_text()
    for source in [one for kind in tomllib.loads(text).values() for one in kind]:
        file = folder / str(source["path"]).replace("*", "part")
        file.parent.mkdir(parents=True, exist_ok=True)
        asked = {name for key in ("prompt", "system") for name in _columns(source.get(key, ""))}
        answers = _columns(source["answer"])
        made = [
            dict.fromkeys(sorted(asked), f"{number} + 1") | dict.fromkeys(answers, str(number + 1))
            for number in range(4)
        ]
        if file.suffix == ".parquet":
            parquet.write_table(pa.Table.from_pylist(made), file)
        else:
            file.write_text("".join(json.dumps(row) + "\n" for row in made))
    path = folder / "tasks.toml"
    path.write_text(re.sub(r"(?m)^rows = \d+\n", "", text))
    return path


def _columns(template: str) -> list[str]:
    return Template(template).get_identifiers()
