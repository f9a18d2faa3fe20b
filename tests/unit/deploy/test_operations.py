import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trinity_bus.config import sections, setting_fields
from workers.cli.app import COMMANDS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text()
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "docker-compose" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
ANCHORS = {
    re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
    for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
}


def test_every_alert_has_a_section_and_every_section_an_alert() -> None:
    part = PAGE.partition("## When an alert fires")[2]
    assert set(re.findall(r"^### (\w+)$", part, re.MULTILINE)) == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_every_alert_leads_to_its_section(rule: dict[str, Any]) -> None:
    path, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert ROOT / path == ROOT / "docs" / "operations.md"
    assert anchor == rule["alert"].lower()
    assert anchor in ANCHORS


def test_every_link_command_and_setting_of_the_page_exists() -> None:
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= ANCHORS
    commands = set(re.findall(r"trinity-bus ([a-z-]+)", PAGE))
    assert commands
    assert commands <= set(COMMANDS)
    # A file beside a section of the same name.
    settings = set(re.findall(rf"`((?:{'|'.join(sections())})\.\w+)`", PAGE)) - {"mesh.toml"}
    assert settings
    assert settings <= set(setting_fields())
