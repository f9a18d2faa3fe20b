"""The Helm chart, rendered by Helm for each size. ``make chart-test`` brings the tools."""

from typing import Any

import pytest

from tests.support.chart import CASES, pods_of, resources_of


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    """Each size, and the mesh on another cluster."""
    return str(request.param)


@pytest.fixture
def resources(case: str) -> list[dict[str, Any]]:
    """All that the chart makes."""
    return resources_of(*CASES[case])


@pytest.fixture
def workloads(resources: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pods of each service."""
    return pods_of(resources)
