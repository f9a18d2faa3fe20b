import pytest
from pydantic import SecretStr

from schemas import TrainerHeartbeat
from schemas.codec import decode, encode
from trinity_bus.config import ExplorerSettings, MeshSettings, Settings, TrainerSettings, told_settings, values_told
from trinity_bus.config.sections import is_secret, setting_fields
from trinity_bus.errors import ConfigError


def test_no_secret_is_told_and_nothing_without_bounds() -> None:
    settings = Settings(
        mesh=MeshSettings(model_path="x" * 5000),
        explorer=ExplorerSettings(http_key=SecretStr("the-key-of-explorers"), engine_url="http://me:password@there:1"),
        trainer=TrainerSettings(learning_rate=0.5),
    )
    told = told_settings(settings, *Settings.model_fields)
    text = str(told)
    assert "the-key-of-explorers" not in text
    assert "password" not in text
    assert told["explorer.engine_url"] == '"http://***@there:1"'
    assert told["trainer.learning_rate"] == "0.5"
    assert told["explorer.http_port"] == ""
    assert len(told["mesh.model_path"]) == 300
    assert set(told) == {path for path, field in setting_fields().items() if not is_secret(field)}
    assert {path.partition(".")[0] for path in told_settings(settings, "trainer")} == {"trainer"}
    # All that any service could tell is a record.
    beat = TrainerHeartbeat(
        trainer="t", incarnation="i", model="m", state="ready", step=0, version=0, master_address="h", master_port=1,
        settings=told,
    )  # fmt: skip
    assert decode(encode(beat), TrainerHeartbeat) == beat


@pytest.mark.parametrize("service", ["coordinator", "explorer", "trainer"])
def test_what_a_service_tells_is_small(service: str) -> None:
    told = told_settings(Settings(), "mesh", service, "synchronizer")
    assert sum(len(path) + len(value) for path, value in told.items()) < 16_384


def test_what_was_told_is_read_again() -> None:
    stages = [{"stage": "sft", "loss": "sft", "total_steps": 3}, {"stage": "rl", "kl_coef": 0.5, "limited": True}]
    settings = Settings(trainer=TrainerSettings(advantage="rloo", stages=stages))
    told = told_settings(settings, "trainer")
    paths = ["trainer.advantage", "trainer.stages", "trainer.overlong_buffer", "trainer.none"]
    assert values_told(told, paths) == {"trainer.advantage": "rloo", "trainer.stages": stages}
    with pytest.raises(ConfigError, match=r"what was told of a\.b is no value"):
        values_told({"a.b": '"cut'}, ["a.b"])
