"""The names that the mesh's metrics have in Prometheus, and those that a query asks for.

The rules are those of OpenTelemetry's compatibility specification (metric name, then unit, then ``_total``), which the
collector's Prometheus exporter follows: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from tests.support.mesh.compose_files import FOLDER

OF_OTHERS = re.compile(r"otelcol_\w+|prometheus_\w+|alertmanager_\w+|up")
"""Metrics of the collector, Prometheus and Alertmanager themselves, and of Prometheus about what it reads."""
_UNITS = {"s": "seconds", "By": "bytes"}
_FUNCTIONS = {"rate", "increase", "min_over_time", "changes", "histogram_quantile"}
_FUNCTIONS |= {"vector", "scalar", "clamp_min", "time"}
_WORDS = {"sum", "max", "min", "avg", "count", "by", "on", "without", "unless", "and", "or", "ignoring", "offset", "le"}

_LIST = """
import importlib, inspect, json
from opentelemetry import metrics

found = []

class Recorder(metrics.NoOpMeter):
    pass

def recording(kind):
    original = getattr(metrics.NoOpMeter, "create_" + kind)
    def create(*args, **more):
        given = inspect.signature(original).bind(*args, **more).arguments
        found.append((kind, given["name"], given.get("unit", "")))
        return original(*args, **more)
    return create

for kind in ("counter", "up_down_counter", "histogram", "gauge"):
    setattr(Recorder, "create_" + kind, recording(kind))
for kind in ("observable_counter", "observable_up_down_counter", "observable_gauge"):
    setattr(Recorder, "create_" + kind, recording(kind))

class Provider(metrics.MeterProvider):
    def get_meter(self, name, *_args, **_more):
        return Recorder(name)

metrics.set_meter_provider(Provider())
from trinity_bus.telemetry.setup import tell_start
tell_start()
for module in ("trinity_bus.bus", "workers.coordinator.service", "workers.explorer.service", "workers.taskset.service",
               "workers.trainer.service"):
    importlib.import_module(module)
from workers.coordinator import observations
observations.watch(lambda: None)
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Query:
    where: str
    expression: str

    @property
    def metrics(self) -> set[str]:
        bare = re.sub(r'"(?:[^"\\\\]|\\\\.)*"', '""', self.expression)
        # Neither the labels of a selector nor those of a grouping, nor durations.
        bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
        bare = re.sub(r"\b(?:by|on|without|ignoring|group_left)\s*\([^)]*\)", " ", bare)
        return set(re.findall(r"(?<![\w.])[a-zA-Z_]\w*", bare)) - _FUNCTIONS - _WORDS


@cache
def instruments() -> frozenset[tuple[str, str, str]]:
    """(kind, name, unit) of every instrument that the services make."""
    done = subprocess.run([sys.executable, "-c", _LIST], capture_output=True, text=True, check=True)
    return frozenset(tuple(entry) for entry in json.loads(done.stdout.splitlines()[-1]))


def series(kind: str, name: str, unit: str) -> set[str]:
    full = name.replace(".", "_")
    if unit == "1":
        unit = "ratio" if "gauge" in kind else ""
    elif unit.startswith("{"):
        unit = ""
    unit = _UNITS.get(unit, unit)
    if unit and not full.endswith(f"_{unit}"):
        full = f"{full}_{unit}"
    if "histogram" in kind:
        return {f"{full}_{part}" for part in ("bucket", "sum", "count")}
    return {f"{full}_total"} if kind.endswith("counter") and "up_down" not in kind else {full}


def known_series() -> set[str]:
    return {name for instrument in instruments() for name in series(*instrument)} | gateway_series()


def gateway_series() -> set[str]:
    """All that a gateway's ``/metrics`` can tell, by the literals of its code."""
    folder = FOLDER.parents[1] / "workers" / "gateway"
    code = "".join((folder / name).read_text() for name in ("service.py", "request_gate.py"))
    counters = set(re.findall(r'Counter(?:MetricFamily)?\(\s*"(\w+)"', code))
    histograms = set(re.findall(r'Histogram(?:MetricFamily)?\(\s*"(\w+)"', code))
    gauges = {f"gateway_{name}" for name in re.findall(r'^ +\("(\w+)", "', code, re.MULTILINE)}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    return parts | {f"{name}_total" for name in counters | gauges} | gauges


def dashboards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((FOLDER / "grafana" / "dashboards").glob("*.json"))]


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panel_queries() -> Iterator[Query]:
    for board in dashboards():
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield Query(f"{board['title']} / {panel['title']} / {target['refId']}", target["expr"])


def alert_queries() -> Iterator[Query]:
    for rule in alert_rules():
        yield Query(f"alert {rule['alert']}", rule["expr"])
