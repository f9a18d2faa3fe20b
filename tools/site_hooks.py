"""What makes a site of the documentation as it lies in the repository: hooks of mkdocs, see ``mkdocs.yml``.

Pages at the root of the repository become pages of the site; each module becomes a page of the reference; links from a
page to a file of the repository lead to that module's page, or to a copy of the file. Nothing is written into docs/.
A link to what is not there stays as it is, and mkdocs says so.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "CHANGELOG.md": "changelog.md",
}
"""Page of the repository to page of the site."""
PACKAGES = ("schemas", "trinity_bus", "workers")
COPIES = "files"
"""Folder of the site that files of the repository are copied to, where a page links to them."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s#]*)(#[^()\s]*)?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1[^\S\n]*$", re.MULTILINE | re.DOTALL)


def modules() -> Iterator[tuple[str, Path]]:
    """Every module that has something to tell, with its file."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if path.read_text(encoding="utf-8").strip():
                yield name, path


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    found = list(modules())
    lines = ["# Reference", "", "Every module, from its docstrings.", ""]
    for name, path in found:
        files.append(File.generated(config, f"reference/{name}.md", content=f"::: {name}\n"))
        if "." not in name:
            lines += ["", f"## {name}", ""]
        lines.append(f"- [`{name}`]({name}.md): {summary(path)}")
    files.append(File.generated(config, "reference/index.md", content="\n".join(lines) + "\n"))
    for copy, source in linked_files(files).items():
        files.append(File.generated(config, copy, abs_src_path=str(ROOT / source)))
    return files


def summary(path: Path) -> str:
    """Return the first sentence of a module's docstring."""
    docstring = re.match(r'\s*r?"""(.+?)(?:\n\s*\n|""")', path.read_text(encoding="utf-8"), re.DOTALL)
    return " ".join(docstring[1].split()).replace("``", "`") if docstring else ""


def linked_files(files: Files) -> dict[str, str]:
    """Files of the repository that a page links to and that are no page and no module: place in the site to path."""
    found: dict[str, str] = {}
    for file in files.documentation_pages():
        if file.src_uri.startswith("reference/"):
            continue
        for _, _, target, _ in _LINK.findall(outside_fences(file.content_string)):
            source = in_repository(file.src_uri, target)
            if source is None or not (ROOT / source).is_file():
                continue
            copy = new_target(source)
            if copy is not None and copy.startswith(f"{COPIES}/"):
                found[copy] = source
    return found


def outside_fences(markdown: str) -> str:
    """Return a page without its blocks of code."""
    return _FENCE.sub("", markdown)


def in_repository(page: str, target: str) -> str | None:
    """Return the path in the repository that a link leads to; None where it leads out of the repository, or nowhere."""
    if not target or "://" in target or target.startswith(("/", "mailto:")):
        return None
    home = next((source for source, uri in PAGES.items() if uri == page), f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
    return None if path.startswith("..") else path


def new_target(source: str) -> str | None:
    """Where in the site a path of the repository is; None for a folder, which is nowhere."""
    if source in PAGES:
        return PAGES[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if (ROOT / source).is_dir():
        return None
    if source.endswith(".py") and source.partition("/")[0] in PACKAGES:
        name = source.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        return f"reference/{name}.md"
    # mkdocs leaves files out whose names begin with a dot.
    return f"{COPIES}/{source}".replace("/.", "/dot-")


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to where their targets are in the site."""
    uri = page.file.src_uri
    if uri.startswith("reference/"):
        return markdown

    def moved(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        source = in_repository(uri, target)
        if source is None or not (ROOT / source).exists():
            return match[0]
        found = new_target(source)
        if found is None:
            return text
        return f"{image}[{text}]({posixpath.relpath(found, posixpath.dirname(uri) or '.')}{anchor or ''})"

    parts, at = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(moved, markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, _LINK.sub(moved, markdown[at:])])
