"""A Kubernetes API for the whole session, and a namespace for each test. ``make cluster-test`` brings the programs."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.cluster.control_plane import ControlPlane
from tests.support.cluster.kubelets import Kubelets
from tests.support.cluster.site import Site, site

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane."""
    with ControlPlane(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="session")
def kubelets(plane: ControlPlane) -> Iterator[Kubelets]:
    """What its nodes say, of which there are none yet."""
    with Kubelets(plane.another_api()).running() as made:
        yield made


@pytest.fixture
def training(plane: ControlPlane, kubelets: Kubelets) -> Iterator[Site]:
    """A namespace, and no node."""
    with site(plane, kubelets, f"training-{next(_NUMBERS)}") as made:
        yield made
