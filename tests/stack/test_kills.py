"""``docker kill`` of each container in turn: what it does is taken up again, and training goes on.

A container that is killed by hand stays dead until somebody starts it, so each test starts it again at once, as an
operator would; seconds of recovery run from the kill.
"""

import time
from collections.abc import Iterator

import pytest

from tests.support.mesh.compose import ComposeStack, docker
from tests.support.mesh.waiting import wait_until
from trinity_bus.telemetry.setup import SHUTDOWN_S
from trinity_bus.view import MeshState

pytestmark = [pytest.mark.stack, pytest.mark.timeout(2700)]

LIMIT_S = 300.0


class Kill:
    """One kill, timed."""

    def __init__(self, stack: ComposeStack, container: str, figures: dict[str, str], what: str) -> None:
        self.view = stack.watch(lambda view: len(view.trained) >= 1, "trained step", 600)
        """Of the mesh, before."""
        self._figures, self._what = figures, what
        self._began = time.monotonic()
        assert docker("kill", container).returncode == 0
        self.at = time.time()

    def recovered(self, how: str) -> None:
        """What was killed does its work again, or another does."""
        self._figures[f"{self._what}, killed"] = f"{how} after {time.monotonic() - self._began:.1f} s"


def start(container: str) -> None:
    assert docker("start", container).returncode == 0


def coordinator_of(stack: ComposeStack, view: MeshState) -> str:
    """The container of the coordinator that works."""
    assert view.coordinator is not None
    (found,) = [
        container
        for container in stack.containers("coordinator")
        if view.coordinator.coordinator == f"coordinator-{container[:12]}"
    ]
    return found


@pytest.fixture
def lives(stack: ComposeStack) -> Iterator[None]:
    """Nobody but the one that is killed is started anew by it."""
    before = starts(stack)
    yield
    changed = {name for name, start in starts(stack).items() if before[name] != start}
    assert len(changed) <= 1, changed


def starts(stack: ComposeStack) -> dict[str, str]:
    # Not the coordinators: one that is too slow for a second or two is relieved by the other, and starts anew.
    names = ("kafka", "explorer", "trainer", "taskset", "otel-collector")
    found = {container: name for name in names for container in stack.containers(name)}
    return {f"{name} {container[:12]}": stack.state(container)["StartedAt"] for container, name in found.items()}


def goes_on(stack: ComposeStack, kill: Kill) -> None:
    """A step is trained of a batch that was handed out after the kill."""

    def on(view: MeshState) -> bool:
        batches = [view.batches.get(step.batch_id or "") for step in view.trained]
        return any(batch is not None and (batch.running_at or 0.0) > kill.at for batch in batches)

    view = stack.watch(on, "step of a batch after the kill", LIMIT_S)
    steps = [step.step for step in view.trained]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.usefixtures("lives")
def test_kafka(stack: ComposeStack, figures: dict[str, str]) -> None:
    (container,) = stack.containers("kafka")
    kill = Kill(stack, container, figures, "kafka")
    start(container)
    stack.watch(lambda view: any(step.trained_at > kill.at for step in view.trained), "step", LIMIT_S)
    kill.recovered("trained a step")
    goes_on(stack, kill)


@pytest.mark.usefixtures("lives")
def test_the_coordinator_that_works(stack: ComposeStack, figures: dict[str, str]) -> None:
    view = stack.watch(lambda view: view.coordinator is not None, "coordinator", LIMIT_S)
    container = coordinator_of(stack, view)
    name = f"coordinator-{container[:12]}"
    kill = Kill(stack, container, figures, "coordinator that works")

    def taken_over(view: MeshState) -> bool:
        return view.coordinator is not None and view.coordinator.coordinator != name

    stack.watch(taken_over, "other coordinator", LIMIT_S)
    kill.recovered("the other took over")
    goes_on(stack, kill)
    start(container)
    wait_until(lambda: stack.healthy(container), "healthy coordinator", LIMIT_S, every_s=0.5)


@pytest.mark.usefixtures("lives")
def test_the_coordinator_that_stands_by(stack: ComposeStack, figures: dict[str, str]) -> None:
    view = stack.watch(lambda view: view.coordinator is not None, "coordinator", LIMIT_S)
    (container,) = set(stack.containers("coordinator")) - {coordinator_of(stack, view)}
    kill = Kill(stack, container, figures, "coordinator that stands by")
    start(container)
    wait_until(lambda: stack.healthy(container), "healthy coordinator", LIMIT_S, every_s=0.5)
    kill.recovered("stood by again")
    goes_on(stack, kill)


@pytest.mark.usefixtures("lives")
def test_the_explorer(stack: ComposeStack, figures: dict[str, str]) -> None:
    (container,) = stack.containers("explorer")
    name = f"explorer-{container[:12]}"
    kill = Kill(stack, container, figures, "explorer")
    before = kill.view.explorers[name].incarnation
    start(container)

    def serves(view: MeshState) -> bool:
        explorer, newest = view.explorers[name], max(view.steps)
        return explorer.incarnation != before and explorer.state == "ready" and explorer.model_version >= newest

    stack.watch(serves, "explorer that serves the newest version", LIMIT_S)
    kill.recovered("served the newest version")
    goes_on(stack, kill)


@pytest.mark.usefixtures("lives")
def test_the_trainer(stack: ComposeStack, figures: dict[str, str]) -> None:
    (container,) = stack.containers("trainer")
    kill = Kill(stack, container, figures, "trainer")
    last = max(kill.view.steps)
    assert kill.view.trainer is not None
    before = kill.view.trainer.incarnation
    start(container)

    def trains(view: MeshState) -> bool:
        return view.trainer is not None and view.trainer.incarnation != before and max(view.steps) > last

    stack.watch(trains, "step of the new trainer", LIMIT_S)
    kill.recovered("trained on from its checkpoint")
    goes_on(stack, kill)


@pytest.mark.usefixtures("lives")
def test_the_taskset(stack: ComposeStack, figures: dict[str, str]) -> None:
    (container,) = stack.containers("taskset")
    kill = Kill(stack, container, figures, "taskset")
    start(container)
    wait_until(lambda: stack.healthy(container), "healthy taskset", LIMIT_S, every_s=0.5)
    kill.recovered("ready")
    goes_on(stack, kill)


@pytest.mark.usefixtures("lives")
def test_the_collector(stack: ComposeStack, figures: dict[str, str]) -> None:
    (container,) = stack.containers("otel-collector")
    kill = Kill(stack, container, figures, "collector")
    start(container)
    fresh = f"timestamp(rl_coordinator_active) > {kill.at}"
    wait_until(lambda: bool(stack.query(fresh)), "new metrics", LIMIT_S, every_s=0.5)
    kill.recovered("new metrics in Prometheus")
    goes_on(stack, kill)


def test_a_service_ends_soon_while_the_collector_answers_nobody(stack: ComposeStack, figures: dict[str, str]) -> None:
    (collector,), (container,) = stack.containers("otel-collector"), stack.containers("taskset")
    # It takes connections, and says nothing.
    assert docker("pause", collector).returncode == 0
    try:
        began = time.monotonic()
        assert docker("stop", container).returncode == 0
        seconds = time.monotonic() - began
    finally:
        assert docker("unpause", collector).returncode == 0
    figures["taskset stops while the collector answers nobody in"] = f"{seconds:.1f} s"
    assert stack.state(container)["ExitCode"] == 0
    assert seconds < 3 * SHUTDOWN_S
    start(container)
    wait_until(lambda: stack.healthy(container), "healthy taskset", LIMIT_S, every_s=0.5)


def test_a_service_that_dies_by_itself_is_started_again_by_docker(stack: ComposeStack, figures: dict[str, str]) -> None:
    (container,) = stack.containers("taskset")
    before = stack.state(container)["StartedAt"]
    began = time.monotonic()
    # Everything in the container but its init process; the shell that asks dies with it.
    docker("exec", container, "sh", "-c", "kill -KILL -1")

    def again() -> bool:
        return stack.state(container)["StartedAt"] != before and stack.healthy(container)

    wait_until(again, "healthy taskset", LIMIT_S, every_s=0.5)
    figures["taskset, died"] = f"ready after {time.monotonic() - began:.1f} s, started by Docker"
