import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("schemas", "trinity_bus", "workers")
SUBJECTLESS = re.compile(r"(Of|Its|Their|Makes)\b|(Handlers|One|One more|All of them|Both|The same)[.:;]")
"""How a docstring begins that says nothing where only the name is seen beside it, as in an editor."""


@cache
def modules() -> dict[str, ast.Module]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def docstrings(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield node.name, text


def test_no_class_name_is_defined_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, module in modules().items():
        for node in module.body:
            # A name with an underscore is its module's own.
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_docstrings_name_their_subject() -> None:
    found = [
        f"{path}: {name}: {text.splitlines()[0]}"
        for path, module in modules().items()
        for name, text in docstrings(module)
        if SUBJECTLESS.match(text)
    ]
    assert found == []
