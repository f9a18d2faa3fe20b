"""Checks before a commit, the forge's workflow and the page for newcomers call what there is, and what people call."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from workers.cli.app import COMMANDS

ROOT = Path(__file__).parents[3]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yaml").read_text())
PAGE = (ROOT / "docs" / "first-hour.md").read_text()


def steps() -> Iterator[dict[str, Any]]:
    for job in WORKFLOW["jobs"].values():
        yield from job["steps"]


def test_git_and_the_site_and_a_tag_run_what_people_run() -> None:
    # Told to be quiet, mkdocs does not count warnings.
    (line,) = re.findall(r"mkdocs build.*", (ROOT / "Makefile").read_text())
    assert "--strict" in line
    assert "--quiet" not in line
    # One command runs services: it has their health asked after, and finds their broker.
    assert not list((ROOT / "workers").rglob("__main__.py"))
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (hook,) = repo["hooks"]
    assert (repo["repo"], hook["language"], hook["entry"]) == ("local", "system", "make check")
    assert set(WORKFLOW["jobs"]["release"]["needs"]) == {"check", "test", "chart-test", "stack-test"}


def test_the_forge_runs_what_people_run() -> None:
    run = "\n".join(step.get("run", "") for step in steps())
    called = set(re.findall(r"\bmake ([a-z-]+)", run))
    assert called <= TARGETS
    assert called >= {"check", "site", "chart-test", "cluster-test", "stack-test", "audit", "sbom", "wheel", "images"}
    assert ".ci/run" in run
    for path in re.findall(r"python3 (\S+)", run):
        assert (ROOT / path).is_file()


def test_actions_of_others_are_pinned_and_the_token_may_only_read() -> None:
    for step in steps():
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in WORKFLOW["jobs"].values())


def test_everything_that_the_first_hour_names_exists() -> None:
    named = set(re.findall(r"trinity-bus ([a-z][a-z-]*)", PAGE))
    paths = set(re.findall(r"(?:tests|schemas|trinity_bus)/[\w/]+(?:\.py)?", PAGE))
    assert named
    assert paths
    assert named <= set(COMMANDS)
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", PAGE, re.MULTILINE)) <= TARGETS
    assert {path for path in paths if not (ROOT / path).exists()} == set()
    # What a breakpoint is set on.
    for module, member in re.findall(r"\b(workers(?:\.[a-z]\w*)+)\.(_?[A-Z]\w*\.\w+)", PAGE):
        text = (ROOT / (module.replace(".", "/") + ".py")).read_text()
        owner, method = member.split(".")
        assert re.search(rf"^class {owner}\b", text, re.MULTILINE), member
        assert re.search(rf"def {method}\(", text), member


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_page_is_in_the_sites_menu(page: Path) -> None:
    assert re.search(rf"^ +- (?:[\w ]+: )?{page.name}$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
