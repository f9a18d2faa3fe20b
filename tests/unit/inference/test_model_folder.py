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


SHORT = '{"max_position_embeddings": 64, "rope_parameters": {"rope_type": "default"}}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, r"config.json does not exist: give mesh.model_path the folder"),
        ("[1]", "is not the configuration of a model"),
        ("{", "is not JSON"),
        (SHORT, r"mesh.max_model_len is 1024, .* 64 positions: lower mesh.max_model_len to 64"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_with_the_reason(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=why):
        check_model(settings(tmp_path))
    if text == SHORT:
        check_model(settings(tmp_path, 64))
