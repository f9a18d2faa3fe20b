"""Which brokers the integration tests run on, by ``TEST_BROKER``::

    embedded     the embedded one
    three        a cluster of three, each a process of its own, with three copies of each partition
    container    Kafka in a container; its image is pulled where it is not there
    auto         a container where Docker answers and has the images, else the embedded one; nothing is pulled

Tests that kill or restart a broker, or listen to it with TLS, start brokers of their own in any case: whole meshes that
are killed on three where that is chosen, the others an embedded one.
"""

import os
from typing import Literal

_VARIABLE = "TEST_BROKER"
_KINDS = ("embedded", "three", "container")


def choice() -> Literal["embedded", "three", "container"]:
    """Which brokers to run on."""
    wanted = os.environ.get(_VARIABLE, "auto")
    if wanted == "auto":
        # Imported here, because Docker's client takes its time.
        from tests.support.mesh.container_broker import has_images

        return "container" if has_images() else "embedded"
    if wanted not in _KINDS:
        raise ValueError(f"{_VARIABLE}={wanted}: give {', '.join(_KINDS)} or auto")
    return wanted  # type: ignore[return-value]  # one of the three


def is_three() -> bool:
    """Whether several brokers were asked for."""
    return os.environ.get(_VARIABLE) == "three"
