"""Apache Kafka in a container: image and settings of ``deploy/docker-compose``, on a free port of this machine."""

import contextlib
import gc
import warnings
from collections.abc import Iterator

import docker
from docker.errors import DockerException, ImageNotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from tests.support.mesh.compose_files import DEFAULTS, FOLDER, filled, parsed
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.waiting import wait_until
from trinity_bus.broker.node import ask

_PORT = 9092
_DOCKER_LIMIT_S = 5
_START_LIMIT_S = 120.0


def has_images() -> bool:
    """Whether Docker answers and has what is needed; nothing is pulled."""
    with warnings.catch_warnings():
        # Where nobody listens, Docker's client leaves its socket to be collected, and that is a warning.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            with contextlib.closing(docker.from_env(timeout=_DOCKER_LIMIT_S)) as client:
                for image in (DEFAULTS["KAFKA_IMAGE"], testcontainers_config.ryuk_image):
                    client.images.get(image)
            found = True
        except (ImageNotFound, DockerException):
            found = False
        gc.collect()
    return found


@contextlib.contextmanager
def container_broker() -> Iterator[str]:
    """A broker in a container, for the length of the block.

    Yields:
        Its address.
    """
    [port] = quiet_ports(1)
    container = DockerContainer(DEFAULTS["KAFKA_IMAGE"]).with_kwargs(hostname="kafka", mem_limit="1g")
    container.ports[_PORT] = ("127.0.0.1", port)  # type: ignore[index, assignment]  # as docker takes it
    # The stack's own settings of Kafka, for this port.
    for name, value in parsed(FOLDER / "compose.yaml")["services"]["kafka"]["environment"].items():
        container.with_env(name, filled(str(value), KAFKA_PORT=str(port)))
    with container:
        wait_until(lambda: _serves(port), "broker in a container", _START_LIMIT_S)
        yield f"127.0.0.1:{port}"


def _serves(port: int) -> bool:
    try:
        return ask(port).brokers > 0
    except OSError:
        return False
