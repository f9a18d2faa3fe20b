"""Every test that a document names is there, so that a promise and what keeps it cannot drift apart."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMED = re.compile(
    r"`(?:tests/)?(?P<place>(?:attacks|chart|cluster|e2e|integration|stack|unit)(?:/[\w/.]+)?|[\w/]*test_\w+\.py)?(?:::)?(?P<name>test_\w+)?`"
)

DEFINED = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)


@cache
def functions() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for name in DEFINED.findall(path.read_text()):
            found.setdefault(name, set()).add(path.relative_to(TESTS).as_posix())
    return found


@cache
def files() -> set[str]:
    return {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*")}


def missing(page: str) -> list[str]:
    gone = []
    for found in NAMED.finditer(page):
        place, name = found["place"] and found["place"].rstrip("/"), found["name"]
        where = {file for file in files() if place is None or file == place or file.endswith(f"/{place}")}
        if place is not None and not where:
            gone.append(found[0])
        inside = functions().get(name, set()) if name else set()
        if name and not any(
            place is None or file == spot or file.startswith(f"{spot}/") for file in inside for spot in where
        ):
            gone.append(found[0])
    return gone


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    assert missing(page.read_text()) == []


def test_one_that_is_gone_is_found() -> None:
    assert missing("`unit/project/test_named_tests.py`, `unit/project::test_one_that_is_gone_is_found`") == []
    assert missing("`unit/project::test_no_such` and `test_no_such_file.py`") == [
        "`unit/project::test_no_such`",
        "`test_no_such_file.py`",
    ]
