"""Old words that documents and ``--help`` must not use. The glossary of CONTRIBUTING.md has the words to use.

``python -m tools.plain_words`` prints each with its place and the word to write, and exits with 1 if there are any.
Code (fences, backquotes) and targets of links are ignored.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_PAGES: Final = ("*.md", "docs/**/*.md", "recipes/**/*.md", "deploy/**/*.md")
_COMMANDS: Final = ROOT / "workers" / "cli"
WORDS: Final = {
    r"(?:is|are|was|were|be|been|not) told\b": "get, read, be reported",
    r"\b(?:told|tells?) (?:of|by|in|at|with|what|who|how|that|when|it|them|whoever)\b": "report, show",
    r"\bheard of\b": "known, reported",
    r"\b(?:was|were|is|are|been|be|what \w+(?: \w+)?) said\b": "response, text, report",
    r"\bhand(?:s|ed|ing)? (?:\w+ ){0,2}out\b": "dispatch",
    r"\b(?:gives?|given|gave) (?:\w+ )?back\b": "return, dispatch again",
    r"\bgive (?:\w+ ){1,3}up\b": "abort",
    r"\bcuts? (?:\w+ ){0,3}off\b": "cancel",
    r"\bpass(?:es|ed)? over (?:a batch|by|batches|it|that)\b": "skip",
    r"\b(?:goes|go|going|went) on\b": "continue",
    r"\bbegins? anew\b|\b(?:started|made|read|written|drawn|computed|named|built) anew\b": "again, restart, rebuild",
    r"\bamid\b": "during",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bunder way\b": "in flight, running",
    r"\blikewise\b": "the same",
    r"\bwhatever else\b|\bof whom\b|\bwhoever else\b|\bnobody else is\b": "name the noun",
    r"\bwho(?:ever)? is alone\b|\bthat is alone\b": "name the noun",
    r"\b(?:can|cannot) be had\b|\b(?:is|are) had (?:of|without)\b": "is available",
    r"\b(?:of|than) one's own\b|\bof (?:yours|theirs|ours)\b": "your own, their own",
    r"\bis (?:at|to) be (?:told|asked)\b|\bwhat (?:it|they) (?:is|are) at\b": "state",
    r"\bteach(?:es)? (?:something|nothing)\b": "has a (no) learning signal",
    r"\bthousand million\b": "billion",
    r"\bof the (?:crowd|agenda|journal)\b|\b(?:crowds?|agenda|journal)\b": "kind, schedule, changelog",
    r"\bstands? (?:on|in) (?:the log|its|their|``)": "is on, is in",
    r"\bas it (?:came|stands)\b": "unchanged",
    r"^(?:<{7}|>{7}) ": "a merge that was left in",
}
"""Patterns that must not occur, ignoring case, and what to write instead."""
_PATTERNS: Final = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in WORDS.items()}


def prose(page: str) -> str:
    """Return a page without code and targets of links, with the same number of lines."""
    page = re.sub(r"^ *```.*?^ *```$", lambda fence: "\n" * fence[0].count("\n"), page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"`[^`]*`", lambda code: "``" + "\n" * code[0].count("\n"), page)
    return re.sub(r"\]\([^)\n]*\)", "]()", page)


def faults(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each old word: its line, the word, and what to write instead."""
    for number, line in enumerate(prose(text).split("\n"), start=1):
        for pattern, instead in _PATTERNS.items():
            for found in pattern.finditer(line):
                yield number, found[0], instead


def texts() -> Iterator[tuple[str, int, str]]:
    """Yield each document and help text: its file, its first line, and the text."""
    for path in sorted({path for pattern in _PAGES for path in ROOT.glob(pattern)}):
        yield str(path.relative_to(ROOT)), 1, path.read_text(encoding="utf-8")
    for path in sorted(_COMMANDS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for part in _of_command(node):
                for constant in ast.walk(part):
                    if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                        yield str(path.relative_to(ROOT)), constant.lineno, constant.value


def _of_command(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that ``--help`` shows: docstrings of commands, and help of options."""
    if isinstance(node, ast.FunctionDef) and any(
        kind in ast.unparse(one) for one in node.decorator_list for kind in (".command(", ".callback(")
    ):
        yield from node.body[:1]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Lazy":
        yield from node.args[1:2]
    elif isinstance(node, ast.keyword) and node.arg == "help":
        yield node.value


def main() -> int:
    """Print the old words. Return the exit status."""
    wrong = [
        f"{path}:{first + line - 1}: {word!r}: write {instead}"
        for path, first, text in texts()
        for line, word, instead in faults(text)
    ]
    sys.stderr.write("".join(f"{line}\n" for line in wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
