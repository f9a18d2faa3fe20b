"""The size of the product by rooms, and the budget of each. A room is a package of ``trinity_bus`` or ``workers``.

``python -m tools.house`` prints a row for each room. ``schemas`` is one room, and so are the modules that are directly
in ``trinity_bus`` and in ``workers``. With ``--check`` it compares them with ``[tool.house]`` of ``pyproject.toml``,
prints a line for each budget that is exceeded, missing or of no room, and exits with 1 if there are any.
"""

import argparse
import ast
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("schemas", "trinity_bus", "workers")
SMALL: Final = 40
_TOTALS: Final = {
    "lines": "lines",
    "modules": "modules",
    "small": f"modules under {SMALL} lines",
    "docstrings": "percent of docstrings",
    "folder": "modules in one folder",
}
"""Columns, and what the total has of each."""
_WAY_OUT: Final = "replace something, or raise the budget in pyproject.toml with the reason in the commit"


@dataclass(frozen=True, slots=True)
class Size:
    lines: int
    modules: int
    # Modules of less than ``SMALL`` lines, without ``__init__.py``, which a package must have
    small: int
    # Percent of the lines; strings below attributes count too
    docstrings: float
    # Modules of the largest folder, without those of the folders in it
    folder: int


def rooms(root: Path) -> dict[str, list[Path]]:
    """Return the modules of each room below a folder."""
    found: dict[str, list[Path]] = defaultdict(list)
    for top in PRODUCT:
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root).parts
            found[parts[0] if top == "schemas" or len(parts) == 2 else "/".join(parts[:2])].append(path)
    return found


def size(modules: Sequence[Path]) -> Size:
    """Return the size of some modules, at least one."""
    texts = {path: path.read_text(encoding="utf-8") for path in modules}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    total = sum(lines.values())
    return Size(
        lines=total,
        modules=len(modules),
        small=sum(count < SMALL and path.name != "__init__.py" for path, count in lines.items()),
        docstrings=100 * sum(map(_docstring_lines, texts.values())) / max(1, total),
        folder=max(Counter(path.parent for path in modules).values()),
    )


def _docstring_lines(text: str) -> int:
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


def faults(sizes: Mapping[str, Size], total: Size, budgets: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each budget that is exceeded, missing, or of a room that is not there."""
    for room, of_room in sizes.items():
        budget = budgets["rooms"].get(room)
        if budget is None:
            yield f"{room} has {of_room.lines} lines and no budget: give it one in pyproject.toml"
        elif of_room.lines > budget:
            yield f"{room} has {of_room.lines} lines, and its budget is {budget}: {_WAY_OUT}"
    for room in budgets["rooms"].keys() - sizes.keys():
        yield f"{room} has a budget and no modules: remove the budget from pyproject.toml"
    for column, what in _TOTALS.items():
        value, budget = asdict(total)[column], budgets["total"][column]
        if value > budget:
            yield f"the product has {value:.4g} {what}, and its budget is {budget}: {_WAY_OUT}"


def table(sizes: Mapping[str, Size], total: Size, budgets: Mapping[str, Any]) -> str:
    """Return the sizes, with the budget of lines of each room."""
    rows = [f"{'room':<24}{'lines':>7}{'budget':>8}{'modules':>9}{f'under {SMALL}':>10}{'docstrings':>12}{'folder':>8}"]
    named = [(room, of_room, budgets["rooms"].get(room, 0)) for room, of_room in sizes.items()]
    for room, row, budget in [*named, ("total", total, budgets["total"]["lines"])]:
        share = f"{row.docstrings:.1f} %"
        rows.append(f"{room:<24}{row.lines:>7}{budget:>8}{row.modules:>9}{row.small:>10}{share:>12}{row.folder:>8}")
    return "\n".join(rows)


def main() -> int:
    """Print the table, or check it. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=__doc__)
    parser.add_argument("--check", action="store_true", help="print only what exceeds its budget")
    check = parser.parse_args().check
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["house"]
    found = rooms(ROOT)
    sizes, total = {room: size(modules) for room, modules in found.items()}, size([*chain(*found.values())])
    if not check:
        sys.stdout.write(f"{table(sizes, total, budgets)}\n")
        return 0
    wrong = list(faults(sizes, total, budgets))
    sys.stderr.write("".join(f"{line}\n" for line in wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
