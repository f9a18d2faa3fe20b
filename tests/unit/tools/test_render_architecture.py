import re

import pytest

from schemas.topics import TOPICS
from tools import render_architecture as architecture


def test_tree_and_table_name_all_there_is_and_a_page_without_marks_is_refused() -> None:
    named = {line.split()[0].rstrip("/") for line in architecture.tree().splitlines() if re.match(r" *\w+/", line)}
    found = {path.parent.name for top in architecture.TOP for path in (architecture.ROOT / top).rglob("__init__.py")}
    assert found == named
    rows = re.findall(r"^\| `([\w-]+)` \|", architecture.topic_table(), re.MULTILINE)
    assert rows == [topic.name for topic in TOPICS]
    with pytest.raises(ValueError, match="lacks"):
        architecture.render("# Architecture\n")
