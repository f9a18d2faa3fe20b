"""The compose stack for tests: brought up once, under its own project name and on free ports, and taken down again.

::

    missing() --nothing--> ComposeStack.up() --> used by tests --> down()
        '--something--> the tests are skipped, and say what is missing

What the stack is made of, and what happens without it:

===========================  =======================================================================================
Docker, compose              the tests are skipped
an image that is built here  built anew each time, with the layers that are there: a change of the code takes seconds
an image that is pulled      taken if it is there; else pulled; else the same image under the tag ``latest`` stands in;
                             else the tests are skipped. The report names those that no registry has given.
Grafana's, Alertmanager's    left out of the stack, and the tests that need it are skipped
===========================  =======================================================================================
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.support.mesh.compose_files import DEFAULTS, FOLDER
from tests.support.mesh.ports import quiet_ports
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError
from trinity_bus.view import MeshState, follow

FILES = ("compose.yaml", "compose.observability.yaml")
SECURE_FILES = ("compose.yaml", "compose.secure.yaml")
BUILD_LIMIT_S = 1800.0
UP_LIMIT_S = 900.0
OPTIONAL = {"grafana": "GRAFANA_IMAGE", "alertmanager": "ALERTMANAGER_IMAGE"}
"""Services that the stack works without, and their images."""
PULLED = ("KAFKA_IMAGE", "OTEL_COLLECTOR_IMAGE", "JAEGER_IMAGE", "PROMETHEUS_IMAGE", *OPTIONAL.values())
JAEGER_CHECK_WITHOUT_WGET = ["CMD", "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/13133"]


def docker(*args: str, limit_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *args], capture_output=True, text=True, timeout=limit_s, check=False)


def defaults() -> dict[str, str]:
    """The variables of ``.env``, with those of the environment in front."""
    return {name: os.environ.get(name, value) for name, value in DEFAULTS.items()}


@dataclass(frozen=True, slots=True)
class Images:
    """What there is to run the stack with."""

    missing: dict[str, str]
    """Variable to image that is neither here nor to be had."""
    made_here: dict[str, str]
    """Variable to image that is not the published one, but was made on this machine."""


def images() -> Images:
    """Looks for each image that is pulled, and tags what stands in."""
    missing, made_here = {}, {}
    wanted = defaults()
    for variable in PULLED:
        image = wanted[variable]
        if not image_is_here(image) and docker("pull", "--quiet", image, limit_s=600).returncode != 0:
            latest = f"{image.rsplit(':', 1)[0]}:latest"
            if not image_is_here(latest):
                missing[variable] = image
                continue
            docker("tag", latest, image)
        if not _is_pulled(image):
            made_here[variable] = image
    return Images(missing, made_here)


def why_not() -> str | None:
    """Why there can be no stack here at all."""
    if shutil.which("docker") is None:
        return "docker is not on the PATH"
    for command in (("info",), ("compose", "version")):
        result = docker(*command)
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines()
            return f"docker {' '.join(command)}: {lines[-1] if lines else 'no word'}"
    return None


def image_is_here(image: str) -> bool:
    return docker("image", "inspect", image).returncode == 0


def _is_pulled(image: str) -> bool:
    """Whether it came from a registry: what is built has no digest of one."""
    return docker("image", "inspect", "--format", "{{len .RepoDigests}}", image).stdout.strip() not in {"", "0"}


def _has_wget(image: str) -> bool:
    return docker("run", "--rm", "--entrypoint", "wget", image, "--help").returncode == 0


@dataclass(slots=True)
class ComposeStack:
    project: str
    files: list[Path]
    ports: dict[str, int]
    """Variable of ``.env`` to the port of this machine."""
    up_began: float = 0.0
    """When ``docker compose up`` was called, seconds since the epoch."""
    up_seconds: float = 0.0
    """Until everything was healthy."""
    env_files: list[Path] = field(default_factory=list)
    """With more variables than those of ``.env``."""
    login: dict[str, str] = field(default_factory=dict)
    """Settings of a client beside address and namespace, where the stack asks for them."""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports['KAFKA_PORT']}"

    @property
    def kafka(self) -> KafkaSettings:
        return self.kafka_of(**self.login)

    def kafka_of(self, **login: str) -> KafkaSettings:
        """To connect from this machine as somebody else."""
        place = {"bootstrap_servers": self.bootstrap, "namespace": defaults()["NAMESPACE"]}
        return KafkaSettings.model_validate({**place, **login})

    @property
    def prometheus_url(self) -> str:
        return f"http://localhost:{self.ports['PROMETHEUS_PORT']}"

    @property
    def jaeger_url(self) -> str:
        return f"http://localhost:{self.ports['JAEGER_PORT']}"

    @property
    def otlp_url(self) -> str:
        return f"http://localhost:{self.ports['OTLP_PORT']}"

    @property
    def gateway_url(self) -> str:
        return f"http://localhost:{self.ports['GATEWAY_PORT']}"

    @property
    def gateway_login(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {defaults()['GATEWAY_API_KEYS'].partition(':')[2]}"}

    def compose(self, *args: str, limit_s: float = 300.0, stdin: str | None = None) -> str:
        """``docker compose ARGS`` of this project; what it printed. AssertionError: it failed."""
        files = [part for path in self.files for part in ("--file", str(path))]
        variables = [part for path in self.env_files for part in ("--env-file", str(path))]
        result = subprocess.run(
            ["docker", "compose", "--project-name", self.project, *variables, *files, *args],
            env={**os.environ, **{name: str(port) for name, port in self.ports.items()}},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        said = f"status {result.returncode}: {result.stdout}\n{result.stderr}"
        assert result.returncode == 0, f"docker compose {' '.join(args)}: {said}"
        return result.stdout

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "--all", "--quiet", service).split()

    def state(self, container: str) -> dict[str, Any]:
        """What Docker knows of a container's state: ``Status``, ``ExitCode``, ``Health``, ..."""
        result = docker("inspect", "--format", "{{json .State}}", container)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout)
        assert isinstance(found, dict)
        return found

    def healthy(self, container: str) -> bool:
        """Whether it runs, and its check, if it has one, says that it works."""
        state = self.state(container)
        return state["Status"] == "running" and state.get("Health", {"Status": "healthy"})["Status"] == "healthy"

    def complaints(self) -> str:
        """Of each service that does not work as it should: its state, its last checks, its last words."""
        found = []
        for container in self.compose("ps", "--all", "--quiet").split():
            state = self.state(container)
            ended_well = state["Status"] == "exited" and state["ExitCode"] == 0
            if not ended_well and not self.healthy(container):
                name = docker("inspect", "--format", "{{.Name}}", container).stdout.strip()
                said = docker("logs", "--tail", "20", container)
                found.append(f"{name}: {json.dumps(state, indent=1)}\n{said.stdout}{said.stderr}")
        return "\n".join(found)

    def watch(self, condition: Callable[[MeshState], bool], what: str, limit_s: float = 300.0) -> MeshState:
        """Follows the mesh as any client can, until something holds of it; what is seen then."""

        async def follow_it() -> MeshState:
            async with Bus(self.kafka, client_id="test") as bus, follow(bus, whole=True) as follower:
                while not condition(follower.state):
                    await follower.changed(0.5)
                return follower.state

        async def within_limit() -> MeshState:
            try:
                async with asyncio.timeout(limit_s):
                    while True:
                        # While Kafka itself is away, there is nobody to ask.
                        with contextlib.suppress(BrokerUnreachableError):
                            return await follow_it()
                        await asyncio.sleep(0.2)
            except TimeoutError:
                raise AssertionError(f"no {what} after {limit_s:g} s") from None

        return asyncio.run(within_limit())

    def query(self, promql: str) -> list[dict[str, Any]]:
        found = self.get_json(f"{self.prometheus_url}/api/v1/query", query=promql)
        result = found["data"]["result"]
        assert isinstance(result, list)
        return result

    def get_json(self, url: str, **parameters: str) -> Any:
        query = f"?{urlencode(parameters)}" if parameters else ""
        with urlopen(url + query, timeout=30) as answer:  # noqa: S310 - of this machine
            return json.load(answer)


def new_stack(folder: Path, found: Images) -> ComposeStack:
    names = (
        "KAFKA_PORT",
        "OTLP_PORT",
        "JAEGER_PORT",
        "PROMETHEUS_PORT",
        "ALERTMANAGER_PORT",
        "GRAFANA_PORT",
        "GATEWAY_PORT",
        "CONSOLE_PORT",
    )
    ports = dict(zip(names, quiet_ports(len(names)), strict=True))
    files = [FOLDER / name for name in FILES]
    # All traces, and soon: tests look for the trace of a certain task, which most likely nothing is wrong with.
    here: dict[str, Any] = {
        "otel-collector": {"environment": {"TRACE_DECISION_WAIT": "10s", "TRACE_PERCENTAGE": "100"}}
    }
    workflows = Path(__file__).parents[1] / "stack_workflows"
    here["explorer"] = {
        "environment": {"TRINITY_BUS_EXPLORER__WORKFLOW_MODULES": "tested_code", "PYTHONPATH": "/workflows"},
        "volumes": [f"{workflows}:/workflows:ro"],
    }
    if not _has_wget(defaults()["JAEGER_IMAGE"]):
        here["jaeger"] = {"healthcheck": {"test": JAEGER_CHECK_WITHOUT_WGET}}
    for service, variable in OPTIONAL.items():
        if variable in found.missing:
            here[service] = {"profiles": ["absent"]}
    return ComposeStack(f"trinity-bus-test-{os.getpid()}", [*files, _override(folder, here)], ports)


def new_secure_stack(folder: Path) -> ComposeStack:
    """A stack with TLS, users and rights that is not up yet, without a taskset, and with no telemetry."""
    ports = dict(zip(("KAFKA_PORT", "GATEWAY_PORT", "CONSOLE_PORT"), quiet_ports(3), strict=True))
    secrets = folder / "secrets"
    made = {**os.environ, "SECRETS_DIR": str(secrets), "KAFKA_PORT": str(ports["KAFKA_PORT"])}
    subprocess.run([FOLDER / "secure.sh"], env=made, check=True, capture_output=True)
    # The tests' authority, where the files have the user's.
    authority = [f"{secrets / 'ca.pem'}:/etc/trinity-bus/ca.pem:ro"]
    services = ("access", "topics", "coordinator", "explorer", "trainer", "taskset", "gateway", "console")
    here: dict[str, Any] = {service: {"volumes": authority} for service in services}
    here["taskset"]["profiles"] = ["absent"]
    files = [*(FOLDER / name for name in SECURE_FILES), _override(folder, here)]
    lines = [line.split("=", 1) for line in (secrets / "operator.env").read_text().splitlines()]
    login = {name.rpartition("__")[2].lower(): value for name, value in lines}
    env_files = [FOLDER / ".env", secrets / "compose.env"]
    return ComposeStack(f"trinity-bus-secure-{os.getpid()}", files, ports, env_files=env_files, login=login)


def _override(folder: Path, services: dict[str, Any]) -> Path:
    """A compose file of what differs here."""
    path = folder / "compose.here.yaml"
    path.write_text(yaml.safe_dump({"services": services}))
    return path
