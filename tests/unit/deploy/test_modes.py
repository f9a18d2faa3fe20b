import pytest

from trinity_bus.config import Settings
from workers.preconditions import PRECONDITIONS, problems


@pytest.mark.parametrize(
    ("mode", "services"),
    [
        ("both", ["console", "coordinator", "explorer", "gateway", "taskset", "trainer"]),
        ("explore", ["console", "coordinator", "explorer", "gateway", "taskset"]),
        ("train", ["console", "coordinator", "trainer"]),
        ("bench", ["console", "coordinator", "explorer", "gateway", "taskset"]),
        ("serve", ["console", "coordinator", "explorer", "gateway"]),
    ],
)
def test_a_service_that_a_mode_does_not_have_refuses_to_start(mode: str, services: list[str]) -> None:
    settings = Settings(mesh={"mode": mode, "model_path": "/m"})
    refused = {name for name in PRECONDITIONS for problem in problems(name, settings) if f"has no {name}" in problem}
    assert sorted(PRECONDITIONS.keys() - refused) == services


def test_beside_a_trainer_a_checkpoint_needs_a_pool_of_its_own() -> None:
    def found(mode: str = "both", **explorer: object) -> list[str]:
        settings = Settings(mesh={"mode": mode, "model_path": "/m"}, explorer={"follows": "none", **explorer})
        return problems("explorer", settings)

    (problem,) = found()
    assert "TRINITY_BUS_EXPLORER__POOL" in problem
    assert len(found(pool="policy")) == 1
    assert found(pool="judge") == found("explore") == []
