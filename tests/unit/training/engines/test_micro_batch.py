"""How many tokens go through the model at once: chosen by what is free, and fewer where that was too many."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fakes.experiences import make_group
from tests.unit.sizing.test_sizing import QWEN3_0_6B, QWEN25_7B
from trinity_bus.config import TrainerSettings
from trinity_bus.errors import ConfigError
from trinity_bus.runtime.memory import free_bytes, total_bytes
from trinity_bus.sizing.memory import GIB, MOST_TOKENS, micro_batch, trainer_need
from trinity_bus.training.engines import micro_batch as module
from trinity_bus.training.engines.micro_batch import MicroBatchBudget, fitted
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.errors import TrainingError


@given(
    room=st.integers(0, 200 * GIB),
    longest=st.integers(1, 32_768),
    gpu=st.booleans(),
    recompute=st.booleans(),
    replay=st.booleans(),
)
def test_what_is_chosen_fits_and_is_computed_again_only_where_it_must(
    room: int, longest: int, gpu: bool, recompute: bool, replay: bool
) -> None:
    own = TrainerSettings(recompute=recompute, router_replay=replay)
    gpu_bytes = 80 * GIB if gpu else None

    def need(tokens: int, again: bool) -> int:
        told = own.model_copy(update={"micro_batch_tokens": tokens, "recompute": again})
        return trainer_need(QWEN25_7B, told, gpu_bytes, 1).items[-1].size

    chosen = micro_batch(QWEN25_7B, own, gpu_bytes, longest, room)
    ways = [True] if recompute else [False] if replay else [False, True]
    if chosen is None:
        assert all(need(longest, again) > room for again in ways)
        return
    tokens, again = chosen
    assert again in ways
    assert need(longest, again) <= room
    # A few tokens more than fit are a sample's that is alone in any case, or rounded up to the least there is.
    assert need(tokens, again) <= room or tokens == 32
    assert tokens <= MOST_TOKENS
    if again and not recompute:
        assert need(longest, False) > room


def test_on_a_cpu_no_more_is_taken_than_makes_steps_faster() -> None:
    for shape in (QWEN3_0_6B, QWEN25_7B):
        need = trainer_need(shape, TrainerSettings(), None, 1)
        state = sum(item.size for item in need.items if item.name in {"weights", "gradients", "optimizer"})
        assert need.items[-1].size <= max(256 << 20, state / 4)


def test_a_number_stays_where_it_fits_and_auto_becomes_one(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(TrainerSettings(model_path=str(model_folder)))
    assert engine.settings.micro_batch_tokens == MOST_TOKENS
    told, large = TrainerSettings(micro_batch_tokens=7), TrainerSettings(micro_batch_tokens=1 << 24)
    assert fitted(told, engine.shape, 100) is told
    monkeypatch.setattr(module, "free_bytes", lambda: 2 * GIB)
    with pytest.raises(
        ConfigError,
        match=r"^trainer\.micro_batch_tokens is 16,777,216, for which training needs [\d.]+ GiB, and 2\.0 are free: "
        r"set it to auto, for [\d,]+ tokens$",
    ):
        fitted(large, engine.shape, 100)
    monkeypatch.setattr(module, "free_bytes", lambda: 1 << 20)
    for own in (large, TrainerSettings()):
        with pytest.raises(
            ConfigError, match=r"^training needs 0\.\d GiB for samples of up to 100 tokens.*0\.0 are free: set"
        ):
            fitted(own, engine.shape, 100)


def test_a_sample_that_does_not_fit_alone_ends_it_with_what_to_set(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fits alone is trained with fewer tokens at once: see the check ``short_of_memory``."""

    def forward(**_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB")

    engine = TorchEngine(TrainerSettings(model_path=str(model_folder), micro_batch_tokens=1000))
    monkeypatch.setattr(engine._network.get_decoder(), "forward", forward)
    with pytest.raises(TrainingError, match=r"does not fit into the GPU's memory: set trainer\.recompute"):
        engine.train_step([make_group()])


def test_another_error_is_no_lack_of_memory() -> None:
    def fail() -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        MicroBatchBudget(8).within_memory([], fail)


def test_what_is_free_is_what_machine_and_group_leave(tmp_path: Path) -> None:
    machine, group = tmp_path / "meminfo", tmp_path / "group"
    assert free_bytes(group, machine) is None
    assert total_bytes(group, machine) is None
    machine.write_text("MemTotal: 2000 kB\nMemAvailable:    1000 kB\n")
    assert free_bytes(group, machine) == 1000 << 10
    assert total_bytes(group, machine) == 2000 << 10
    group.mkdir()
    (group / "memory.current").write_text("700\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 300\n")
    for limit, left in (("max", 1000 << 10), ("900", 500), (str(1 << 40), 1000 << 10)):
        (group / "memory.max").write_text(f"{limit}\n")
        assert free_bytes(group, machine) == left
        assert total_bytes(group, machine) == (2000 << 10 if limit == "max" else min(2000 << 10, int(limit)))
