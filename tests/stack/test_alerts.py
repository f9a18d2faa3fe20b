"""Each alert fires in the stack's Prometheus, by a real fault or, where none is sensible, by metrics that look like it.

``TrainerStalled`` alone is not waited for: it needs a quarter of an hour without a step. ``alerts.test.yaml`` fires it,
and all others, with made-up time.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from tests.stack.test_dashboards import make_trouble
from tests.support.fakes.service import PretendService
from tests.support.mesh.compose import ComposeStack, defaults, docker
from tests.support.mesh.compose_files import FOLDER
from tests.support.mesh.prometheus_names import alert_rules
from tests.support.mesh.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(2700)]

LIMIT_S = 400.0
FIRED: set[str] = set()
"""By the tests of this file, in their order."""


def firing(stack: ComposeStack) -> set[str]:
    alerts = stack.get_json(f"{stack.prometheus_url}/api/v1/alerts")["data"]["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def await_firing(stack: ComposeStack, names: Iterable[str]) -> None:
    missing = set(names)

    def all_fired() -> bool:
        missing.difference_update(firing(stack))
        return not missing

    wait_until(all_fired, f"firing of {sorted(missing)}", LIMIT_S, every_s=2.0)
    FIRED.update(names)


@contextmanager
def killed(stack: ComposeStack, *services: str) -> Iterator[None]:
    """Without these services; they are back, and healthy, at the end."""
    stack.compose("kill", *services)
    try:
        yield
    finally:
        stack.compose("up", "--detach", "--wait", "--no-recreate", *services, limit_s=600)


def test_the_rules_are_sound_and_each_fires_once_in_made_up_time(stack_images: object) -> None:
    image = defaults()["PROMETHEUS_IMAGE"]
    promtool = ("run", "--rm", "--volume", f"{FOLDER}:/rules:ro", "--workdir", "/rules", "--entrypoint", "promtool")
    checked = docker(*promtool, image, "check", "rules", "alerts.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = docker(*promtool, image, "test", "rules", "alerts.test.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_prometheus_evaluates_every_rule(stack: ComposeStack) -> None:
    def health() -> dict[str, str]:
        groups = stack.get_json(f"{stack.prometheus_url}/api/v1/rules")["data"]["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    wanted = {rule["alert"]: "ok" for rule in alert_rules()}
    wait_until(lambda: health() == wanted, "an evaluation of every rule", LIMIT_S, every_s=2.0)


def test_bad_records_and_failing_tasks_fire(stack: ComposeStack) -> None:
    make_trouble(stack)
    await_firing(stack, ["DeadLetters"])


def test_what_no_test_can_bring_about_fires_when_it_is_told(stack: ComposeStack) -> None:
    """Weights with other bytes, engines that drift, dying runners, a service in a loop of crashes, and so on."""
    with PretendService(stack.otlp_url, "pretended") as service:
        rising = {
            "rl.weight_sync.mismatches": {},
            "rl.explorer.runner.deaths": {},
            "trinity.records.lost": {},
            "rl.coordinator.facts": {"rl__fact": "sync_failed"},
            "trinity.dead_letters": {"trinity__dead_letter__reason": "forged_author"},
        }
        for name, attributes in rising.items():
            service.add(name, 0, **attributes)
        service.set("trinity.process.start_time", 1.0)
        for status in ("failed", "completed"):
            service.add("rl.tasks", 0, rl__task__status=status)
        service.set("rl.train.mismatch_k3", 0.2, rl__model__name="pretended")
        service.set("rl.coordinator.batch.age", 3600.0, rl__batch__state="running")
        service.set("trinity.consumer.lag", 5000.0, messaging__destination__template="explorer-events")
        service.set("trinity.topic.budget_used", 0.95, messaging__destination__template="experiences")
        service.set("trinity.topic.under_replicated", 3.0, messaging__destination__template="explorer-events")
        service.set("trinity.disk.size", 100.0, trinity__disk="pretended")
        service.set("trinity.disk.free", 1.0, trinity__disk="pretended")
        service.set("trinity.certificate.expiry", time.time() + 86400, trinity__certificate="pretended")

        def told(name: str, value: float) -> bool:
            samples = stack.query(f'{service.series(name)}{{service_name="pretended"}} == {value}')
            return len(samples) > 0

        for name in rising:
            wait_until(lambda name=name: told(name, 0), f"{name} of 0", LIMIT_S, every_s=1.0)  # type: ignore[misc]  # of a lambda with a default
        for started_at in (1.0, 2.0, 3.0):
            service.set("trinity.process.start_time", started_at)
            wait_until(lambda at=started_at: told("trinity.process.start_time", at), "a start", LIMIT_S, every_s=1.0)  # type: ignore[misc]
        for name, attributes in rising.items():
            service.add(name, 1, **attributes)
        expected = {"WeightsDiffer", "EnginesDisagree", "RunnersDie", "WeightSyncFails", "BatchStuck", "LagGrows"}
        expected |= {"ForgedRecords"}
        expected |= {"RecordsLost", "BacklogNearBudget", "UnderReplicated", "DiskFills", "CertificateEnds"}
        missing = expected | {"ServiceRestarts", "TasksFail"}

        def all_fired() -> bool:
            # A steady stream of tasks that fail: the alert is about a rate that lasts.
            service.add("rl.tasks", 1000, rl__task__status="failed")
            missing.difference_update(firing(stack))
            return not missing

        wait_until(all_fired, "firing of all that was told", LIMIT_S, every_s=2.0)
    FIRED.update(expected | {"ServiceRestarts", "TasksFail"})


def test_a_mesh_without_explorer_or_trainer_fires(stack: ComposeStack) -> None:
    with killed(stack, "explorer", "trainer"):
        await_firing(stack, ["ExplorerLost", "NoExplorer", "NoTrainer"])


def test_a_mesh_without_coordinator_fires(stack: ComposeStack) -> None:
    with killed(stack, "coordinator"):
        await_firing(stack, ["NoCoordinator"])


def test_what_fires_is_a_line_of_the_receiver(stack: ComposeStack) -> None:
    if not stack.containers("alertmanager"):
        pytest.skip("no image of Alertmanager is here, and none can be pulled")
    wait_until(
        lambda: "firing critical NoCoordinator" in stack.compose("logs", "--no-color", "alert-log"),
        "the receiver's line",
        LIMIT_S,
        every_s=2.0,
    )


def test_alerts_that_nobody_gets_fire(stack: ComposeStack) -> None:
    """Where Alertmanager's image is not to be had, it does so by itself."""
    with killed(stack, "alert-log"):
        await_firing(stack, ["AlertsNotDelivered"])


def test_a_stack_without_collector_fires(stack: ComposeStack) -> None:
    with killed(stack, "otel-collector"):
        await_firing(stack, ["TelemetryLost"])


def test_all_but_one_have_fired(stack: ComposeStack, figures: dict[str, str]) -> None:
    assert {rule["alert"] for rule in alert_rules()} - FIRED == {"TrainerStalled"}
    figures["alerts that fired in the stack"] = f"{len(FIRED)} of {len(alert_rules())}"
    calm = {"NoCoordinator", "NoExplorer", "NoTrainer", "TelemetryLost"}
    wait_until(lambda: not firing(stack) & calm, "an end of these alerts", LIMIT_S, every_s=2.0)
