"""Recorded routes: those that can be used are, the others are counted; what a router chose itself changes nothing."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fakes.tiny_trainer import EXPERTS, EXPERTS_PER_TOKEN, LAYERS
from tests.support.training.samples import train_sample
from trinity_bus.config import TrainerSettings
from trinity_bus.training import layout_rules
from trinity_bus.training.errors import ParallelError
from trinity_bus.training.families import read_shape
from trinity_bus.training.steps.packing import TrainSample, pack
from trinity_bus.training.steps.samples import with_routes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model_at: Callable[..., Path]) -> Path:
    return model_at(tmp_path_factory.mktemp("routes") / "model", family="qwen3_moe")


def sample(chosen: list[list[int]]) -> TrainSample:
    return train_sample(range(len(chosen)), len(chosen) - 1, routes=np.array(chosen, np.uint8))


@given(st.lists(st.permutations(range(EXPERTS)), min_size=LAYERS * 2, max_size=LAYERS * 2), st.integers(1, 4))
def test_padding_goes_where_the_token_before_it_goes(rows: list[list[int]], multiple: int) -> None:
    layers = np.array(rows)[:, :EXPERTS_PER_TOKEN].reshape(2, -1)
    packed = pack([sample(layers.tolist())], token_weight=1.0, multiple=multiple)
    assert packed.routes is not None
    assert len(packed.routes) == len(packed.tokens)
    np.testing.assert_array_equal(packed.routes[:2], layers)
    assert (packed.routes[2:] == packed.routes[1]).all()


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param([[0, 1, 2]] * 2, id="another number"),
        pytest.param([[0, 1, 2, 2]] * 2, id="one twice"),
        pytest.param([[0, 1, 2, EXPERTS]] * 2, id="none such"),
    ],
)
def test_what_cannot_be_used_is_counted(chosen: list[list[int]], folder: Path) -> None:
    shape, good = read_shape(folder), sample([[0, 1, 2, 3]] * 2)
    kept, told = with_routes([sample(chosen), good], shape, replay=True)
    assert told == {"samples_without_routes": 1.0}
    assert kept[0].routes is None
    assert kept[1] is good
    kept, told = with_routes([good], shape, replay=False)
    assert (kept[0].routes, told) == (None, {})


@pytest.mark.parametrize(
    ("engine", "recompute", "message"),
    [
        ("torch", False, "engine=torch cannot do it; megatron can"),
        ("megatron", True, "with recompute=true a router would choose anew"),
    ],
)
def test_replay_is_refused_where_it_cannot_be(engine: str, recompute: bool, message: str, folder: Path) -> None:
    settings = TrainerSettings(router_replay=True, recompute=recompute)
    with pytest.raises(ParallelError, match=message):
        layout_rules.check(settings, read_shape(folder), engine)


def test_replay_is_refused_for_a_model_without_routers(model_folder: Path) -> None:
    with pytest.raises(ParallelError, match="the model has no experts"):
        layout_rules.check(TrainerSettings(router_replay=True), read_shape(model_folder), "megatron")
