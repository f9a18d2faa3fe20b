"""The Helm chart, rendered by Helm for each size. ``make chart-test`` brings the tools."""

from typing import Any

import pytest

from tests.support.chart import CASES, resources_of


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    """Each size, and the mesh on another cluster."""
    return str(request.param)


@pytest.fixture
def resources(case: str) -> list[dict[str, Any]]:
    """All that the chart makes."""
    return resources_of(case)


@pytest.fixture
def workloads(resources: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pods of each service: its component's name to their specification; of several pods of one, the first."""
    templates = [one["spec"]["template"] for one in resources if one["kind"] in ("Deployment", "StatefulSet")]
    groups = [one["spec"]["leaderWorkerTemplate"] for one in resources if one["kind"] == "LeaderWorkerSet"]
    templates += [group["leaderTemplate"] for group in groups]
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in templates}
