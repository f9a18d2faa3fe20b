import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.mesh.compose_files import FOLDER
from tests.support.mesh.prometheus_names import (
    OF_OTHERS,
    Query,
    alert_queries,
    alert_rules,
    dashboards,
    instruments,
    known_series,
    panel_queries,
    series,
)
from trinity_bus.config import sections, setting_fields
from workers.cli.app import COMMANDS

QUERIES = [*panel_queries(), *alert_queries()]


@pytest.mark.parametrize("query", QUERIES, ids=[query.where for query in QUERIES])
def test_every_metric_of_a_query_is_one_that_the_mesh_keeps(query: Query) -> None:
    asked = {name for name in query.metrics if not OF_OTHERS.fullmatch(name)}
    assert asked or query.metrics, "it asks for no metric at all"
    assert asked <= known_series()


@pytest.mark.parametrize(
    ("instrument", "names"),
    [
        (("counter", "rl.tokens", "{token}"), {"rl_tokens_total"}),
        (("observable_counter", "rl.trainer.time", "s"), {"rl_trainer_time_seconds_total"}),
        (("observable_gauge", "rl.coordinator.active", ""), {"rl_coordinator_active"}),
        (("gauge", "rl.train.entropy", "nat"), {"rl_train_entropy_nat"}),
        (("gauge", "rl.train.clip_fraction", "1"), {"rl_train_clip_fraction_ratio"}),
        (("histogram", "rl.staleness", "{version}"), {f"rl_staleness_{part}" for part in ("bucket", "sum", "count")}),
    ],
)
def test_names_follow_the_rules_of_the_exporter(instrument: tuple[str, str, str], names: set[str]) -> None:
    assert series(*instrument) == names


def test_metrics_are_found_in_a_query() -> None:
    query = Query("", 'sum by (a) (rate(x_total{b=~"c|sum"}[1m])) / scalar(sum(rate(y[5m]))) > 0 unless on () count(z)')
    assert query.metrics == {"x_total", "y", "z"}


def test_the_three_dashboards_are_there_and_no_panel_covers_another() -> None:
    assert [board["title"] for board in dashboards()] == [
        "Is it healthy?",
        "Is it learning?",
        "Where does the time go?",
    ]
    for board in dashboards():
        cells = [
            (x, y)
            for panel in board["panels"]
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(cells) == len(set(cells))
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_every_alert_says_what_is_wrong_is_fired_by_a_rule_test_and_has_a_section() -> None:
    rules = alert_rules()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    cases = yaml.safe_load((FOLDER / "alerts.test.yaml").read_text())["tests"]
    fired = {test["alertname"] for case in cases for test in case["alert_rule_test"] if test["exp_alerts"]}
    quiet = {test["alertname"] for case in cases for test in case["alert_rule_test"] if not test["exp_alerts"]}
    assert fired == quiet == {rule["alert"] for rule in alert_rules()}
    part = PAGE.partition("## When an alert fires")[2]
    assert set(re.findall(r"^### (\w+)$", part, re.MULTILINE)) == {rule["alert"] for rule in RULES}


def test_every_metric_is_explained() -> None:
    page = (FOLDER.parents[1] / "docs" / "telemetry.md").read_text()
    assert {name for _, name, _ in instruments() if f"`{name}`" not in page} == set()


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text()
RULES = alert_rules()
ANCHORS = {
    re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
    for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
}


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
