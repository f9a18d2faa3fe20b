"""The tables of ``docs/architecture.md`` that follow from the code name all there is."""

import re

import pytest

from schemas.topics import TOPICS
from tools import render_architecture as architecture


def test_the_page_is_current() -> None:
    page = architecture.PAGE.read_text(encoding="utf-8")
    assert page == architecture.render(page), "run `make docs`"


def test_the_tree_names_every_package_of_the_code() -> None:
    named = {line.split()[0].rstrip("/") for line in architecture.tree().splitlines() if re.match(r" *\w+/", line)}
    found = {path.parent.name for top in architecture.TOP for path in (architecture.ROOT / top).rglob("__init__.py")}
    assert found == named


def test_the_table_has_a_row_for_every_topic() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", architecture.topic_table(), re.MULTILINE)
    assert rows == [topic.name for topic in TOPICS]


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        architecture.render("# Architecture\n")
