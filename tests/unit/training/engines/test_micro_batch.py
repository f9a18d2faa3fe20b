"""How many tokens go through the model at once: chosen by what is free, and fewer where that was too many."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas import ExperienceGroup
from tests.unit.sizing.test_sizing import QWEN3_0_6B, QWEN25_7B
from trinity_bus.config import TrainerSettings
from trinity_bus.errors import ConfigError
from trinity_bus.runtime.memory import free_bytes, total_bytes
from trinity_bus.sizing.memory import GIB, MOST_TOKENS, micro_batch, trainer_need
from trinity_bus.training.engines import micro_batch as module
from trinity_bus.training.engines.micro_batch import MicroBatchBudget, fitted
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.families import read_shape


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


def test_a_number_stays_and_auto_becomes_one(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(TrainerSettings(model_path=str(model_folder)))
    assert engine.settings.micro_batch_tokens == MOST_TOKENS
    told = TrainerSettings(micro_batch_tokens=7)
    assert fitted(told, engine.shape, 100) is told
    monkeypatch.setattr(module, "free_bytes", lambda: 1 << 20)
    with pytest.raises(
        ConfigError, match=r"^training needs 0\.\d GiB for samples of up to 100 tokens.*0\.0 are free: set"
    ):
        fitted(TrainerSettings(), engine.shape, 100)


def test_a_number_that_does_not_fit_is_refused_with_one_that_does(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = TrainerSettings(micro_batch_tokens=1 << 24)
    monkeypatch.setattr(module, "free_bytes", lambda: 2 * GIB)
    with pytest.raises(
        ConfigError,
        match=r"^trainer\.micro_batch_tokens is 16,777,216, for which training needs [\d.]+ GiB, and 2\.0 are free: "
        r"set it to auto, for [\d,]+ tokens$",
    ):
        fitted(own, read_shape(model_folder), 100)
    monkeypatch.setattr(module, "free_bytes", lambda: 1 << 20)
    with pytest.raises(ConfigError, match=r"^training needs 0\.\d GiB for samples of up to 100 tokens"):
        fitted(own, read_shape(model_folder), 100)


def trained(
    model_folder: Path, group: Callable[..., ExperienceGroup], limit: int
) -> tuple[TorchEngine, dict[str, Any]]:
    """An engine on a device that is out of memory where more than so many tokens are run, and its step's metrics."""
    settings = TrainerSettings(model_path=str(model_folder), old_logprobs="recompute", micro_batch_tokens=1000)
    engine = TorchEngine(settings)
    genuine = engine._network.forward

    def forward(*, input_ids: torch.Tensor, **options: Any) -> Any:
        if input_ids.numel() > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB")
        return genuine(input_ids=input_ids, **options)

    decoder = engine._network.get_decoder()
    genuine, decoder.forward = decoder.forward, forward
    return engine, engine.train_step([group()])


def test_out_of_memory_makes_the_pass_anew_with_half_as_many_tokens(
    model_folder: Path, group: Callable[..., ExperienceGroup], caplog: pytest.LogCaptureFixture
) -> None:
    longest = int(group().lengths.max())
    with caplog.at_level(logging.WARNING):
        engine, metrics = trained(model_folder, group, limit=3 * longest)
    plain, expected = trained(model_folder, group, limit=1 << 30)
    assert metrics["micro_batches_halved"] >= 1
    assert expected["micro_batches_halved"] == 0
    assert metrics["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    for (name, ours), (_, theirs) in zip(engine.hf_tensors(), plain.hf_tensors(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4, msg=name)
    assert "the pass is made again, with micro-batches of 500 tokens" in caplog.text


def test_a_sample_that_does_not_fit_alone_ends_it_with_what_to_set(
    model_folder: Path, group: Callable[..., ExperienceGroup]
) -> None:
    with pytest.raises(TrainingError, match=r"does not fit into the GPU's memory: set trainer\.recompute"):
        trained(model_folder, group, limit=1)


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
