"""The two tables of ``docs/architecture.md`` that follow from the code: the topics, and where things live.

``python -m tools.render_architecture`` writes them into the page, each between its two marks; with ``--check`` it says
whether the page is current and exits with 1 where it is not. A package says what it is for in the first line of its
docstring, a topic in the first sentence of its description.
"""

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from schemas.topic import Topic
from schemas.topics import TOPICS
from tools.generated import between_marks, write_or_check

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "architecture.md"
TOP: Final = ("schemas", "trinity_bus", "workers")
_WIDTH: Final = 120
_COLUMN: Final = 24
_KEPT: Final = {"delete": "by time", "compact": "compacted"}


def topic_table() -> str:
    """Return the topics as a table of Markdown."""
    rows = [
        "| topic | key | a record is | written by | read by | kept | partitions |",
        "|---|---|---|---|---|---|---|",
        *(_topic_row(topic) for topic in TOPICS),
    ]
    return "\n".join(rows)


def tree() -> str:
    """Return the packages, each with what it is for, as a block of Markdown."""
    return "\n".join(["```", *(line for name in TOP for line in _entries(ROOT / name, 0)), "```"])


def render(page: str) -> str:
    """Return the page with both tables anew.

    Raises:
        ValueError: The page lacks a mark.
    """
    for name, content in (("topics", topic_table()), ("tree", tree())):
        page = between_marks(page, name, "render_architecture", content)
    return page


def _topic_row(topic: Topic) -> str:
    kept = _KEPT[topic.cleanup] if topic.keep_ms is None else "until needed no more"
    kept += " and by size" if topic.retention_bytes > 0 else ""
    sentence = re.split(r"(?<=\w)\. ", topic.description, maxsplit=1)[0].rstrip(".")
    cells = (
        f"`{topic.name}`",
        topic.key,
        sentence.replace("|", "\\|"),
        ", ".join(topic.writers),
        ", ".join(topic.readers),
        kept,
        str(topic.partitions),
    )
    return f"| {' | '.join(cells)} |"


def _entries(folder: Path, level: int) -> Iterator[str]:
    yield from _entry(f"{folder.name}/", folder / "__init__.py", level)
    for package in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from _entries(package, level + 1)
    if folder.name == "trinity_bus":
        for module in sorted(path for path in folder.glob("*.py") if path.name != "__init__.py"):
            yield from _entry(module.name, module, level + 1)


def _entry(name: str, module: Path, level: int) -> list[str]:
    head = f"{'  ' * level}{name}".ljust(_COLUMN)
    return textwrap.wrap(
        _summary(module),
        _WIDTH,
        initial_indent=head if head.endswith(" ") else f"{head} ",
        subsequent_indent=" " * _COLUMN,
        break_on_hyphens=False,
    )


def _summary(module: Path) -> str:
    """Return the first sentence of a module's docstring, without the name that it may begin with."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    first = " ".join(docstring.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=\w)\. ", first, maxsplit=1)[0].rstrip(".").replace("``", "`")
    if not sentence:
        raise ValueError(f"{module.relative_to(ROOT)} does not say what it is for")
    sentence = re.sub(r"^\w[\w ]{0,20}: ", "", sentence)
    return re.sub(r"^(?:The|Every|What|Traces)\b", lambda word: word[0].lower(), sentence)


def main() -> int:
    current = render(PAGE.read_text(encoding="utf-8"))
    return write_or_check("python -m tools.render_architecture", __doc__ or "", {PAGE: current})


if __name__ == "__main__":
    sys.exit(main())
