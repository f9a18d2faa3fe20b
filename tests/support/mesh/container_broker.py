"""Apache Kafka in a container: image and settings of ``deploy/docker-compose``, on a free port of this machine."""

import contextlib
import gc
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import docker
import yaml
from docker.errors import DockerException, ImageNotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.waiting import wait_until
from trinity_bus.broker.node import ask

_FOLDER = Path(__file__).parents[3] / "deploy" / "docker-compose"
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
                for image in (_variables()["KAFKA_IMAGE"], testcontainers_config.ryuk_image):
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
    container = DockerContainer(_variables()["KAFKA_IMAGE"]).with_kwargs(hostname="kafka", mem_limit="1g")
    container.ports[_PORT] = ("127.0.0.1", port)  # type: ignore[index, assignment]  # as docker takes it
    for name, value in _environment(port).items():
        container.with_env(name, value)
    with container:
        wait_until(lambda: _serves(port), "broker in a container", _START_LIMIT_S)
        yield f"127.0.0.1:{port}"


def _serves(port: int) -> bool:
    try:
        return ask(port).brokers > 0
    except OSError:
        return False


def _variables() -> dict[str, str]:
    lines = (_FOLDER / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _environment(port: int) -> dict[str, str]:
    """The stack's own settings of Kafka, for this port."""
    variables = {**_variables(), "KAFKA_PORT": str(port)}
    services = yaml.safe_load((_FOLDER / "compose.yaml").read_text())["services"]
    filled = re.compile(r"\$\{(\w+)\}")
    return {
        name: filled.sub(lambda match: variables[match[1]], str(value))
        for name, value in services["kafka"]["environment"].items()
    }
