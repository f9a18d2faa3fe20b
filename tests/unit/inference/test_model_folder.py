"""What an explorer says of its model's folder before it imports vLLM."""

import json
from pathlib import Path
from typing import Any

import pytest

from trinity_bus.config import ExplorerSettings
from trinity_bus.errors import ConfigError
from trinity_bus.inference.launch import check_model


def settings(path: object, max_model_len: int = 1024) -> ExplorerSettings:
    return ExplorerSettings(model_path=str(path), max_model_len=max_model_len)


def written(folder: Path, config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config.json does not exist: give mesh.model_path the folder"):
        check_model(settings(tmp_path / "nothing"))


def test_sequences_longer_than_a_model_has_positions_are_refused_by_the_name_of_the_setting(tmp_path: Path) -> None:
    written(tmp_path, {"max_position_embeddings": 64, "rope_parameters": {"rope_type": "default"}})
    with pytest.raises(
        ConfigError, match=r"mesh.max_model_len is 1024, .* 64 positions: lower mesh.max_model_len to 64"
    ):
        check_model(settings(tmp_path))
    check_model(settings(tmp_path, 64))


@pytest.mark.parametrize(
    "config",
    [
        {"max_position_embeddings": 64, "rope_scaling": {"rope_type": "yarn", "factor": 32.0}},
        {"text_config": {"max_position_embeddings": 4096}, "max_position_embeddings": 64},
        {"n_positions": 64},
    ],
    ids=["stretched", "the text part counts", "not told"],
)
def test_what_only_vllm_can_judge_is_left_to_it(tmp_path: Path, config: dict[str, Any]) -> None:
    check_model(settings(written(tmp_path, config)))


def test_a_name_on_a_hub_is_a_folder_before_it_comes_here() -> None:
    with pytest.raises(ConfigError, match=r"org/model/config\.json does not exist"):
        check_model(settings("org/model"))


def test_a_configuration_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the configuration of a model"):
        check_model(settings(written(tmp_path, [1])))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        check_model(settings(tmp_path))
