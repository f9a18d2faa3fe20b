"""A layout that does not fit a model is refused before anything is loaded, and the message says what would fit."""

from typing import Any

import pytest

from trinity_bus.config import TrainerSettings
from trinity_bus.training import layout_rules
from trinity_bus.training.errors import ParallelError
from trinity_bus.training.families import ModelShape

DENSE = {
    "layers": 6, "hidden": 32, "heads": 8, "groups": 4, "head_dim": 4, "intermediate": 48, "vocabulary": 31,
    "max_positions": 64, "norm_epsilon": 1e-6, "rope_theta": 1e4, "tied": True, "qk_norm": True, "qkv_bias": False,
}  # fmt: skip
EXPERTS = {"experts": 8, "experts_per_token": 2}


@pytest.mark.parametrize(
    ("layout", "also", "message"),
    [
        ({"tensor_parallel": 3}, {}, "tensor_parallel=3 does not divide the model's 8 heads; 1, 2, 4 can be trained"),
        ({"tensor_parallel": 8}, {}, "the model's 4 key-value heads; 1, 2, 4 can be trained"),
        ({"tensor_parallel": 4}, {"intermediate": 6}, "the model's 6 MLP width; 1, 2 can be trained"),
        ({"tensor_parallel": 4}, {"vocabulary": 3}, "a vocabulary of 3 leaves ranks of 4 without a token"),
        ({"sequence_parallel": True}, {}, "sequence_parallel=true needs tensor_parallel above 1"),
        ({"tensor_parallel": 2}, EXPERTS, "of a model with experts needs sequence_parallel=true"),
        ({"pipeline_parallel": 4}, {}, "pipeline_parallel=4 does not divide the model's 6 layers; 1, 2, 3, 6 can"),
        ({"expert_parallel": 2, "data_parallel": 2}, {}, "expert_parallel=2: the model has no experts; 1 can be"),
        ({"expert_parallel": 3, "data_parallel": 3}, EXPERTS, "the model's 8 experts; 1, 2, 4, 8 can be trained"),
        ({"expert_parallel": 4, "data_parallel": 2}, EXPERTS, "context_parallel times data_parallel, 2; 1, 2 can be"),
        ({"router_replay": True}, {}, "router_replay=true: the model has no experts"),
        ({"router_replay": True, "engine": "torch"}, EXPERTS, "engine=torch cannot do it; megatron can"),
        ({"router_replay": True, "recompute": True}, EXPERTS, "with recompute=true a router would choose anew"),
    ],
)
def test_what_does_not_fit_is_refused(layout: dict[str, Any], also: dict[str, Any], message: str) -> None:
    settings = TrainerSettings(**layout)
    with pytest.raises(ParallelError, match=message):
        layout_rules.check(settings, ModelShape(**DENSE | also), settings.engine)


@pytest.mark.parametrize(
    ("layout", "also"),
    [
        ({"tensor_parallel": 4, "sequence_parallel": True, "context_parallel": 3}, {}),
        ({"pipeline_parallel": 3, "data_parallel": 5}, {}),
        ({"context_parallel": 2, "data_parallel": 2, "expert_parallel": 4}, EXPERTS),
    ],
)
def test_what_fits_passes(layout: dict[str, Any], also: dict[str, Any]) -> None:
    layout_rules.check(TrainerSettings(**layout), ModelShape(**DENSE | also), "megatron")
