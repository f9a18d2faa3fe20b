"""How much memory a mesh needs: held against known models, and against what the trainer and vLLM say of themselves."""

import tomllib
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chart import ROOT, SIZES, shape_of, values
from tools.version_sizes import moved
from trinity_bus.config.sections import Sections
from trinity_bus.config.settings import read_given
from trinity_bus.sizing.hardware import Hardware, spread
from trinity_bus.sizing.memory import (
    GIB,
    adapter_parameters,
    explorer_memory,
    host_memory,
    limit_bytes,
    parameters,
    service_memory,
    trainer_memory,
)
from trinity_bus.training import layout_rules
from trinity_bus.training.families import FAMILIES, ModelShape

_COMMON = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960}
_SIZES = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
)  # fmt: skip


def qwen(family: str, *sizes: int, **more: Any) -> ModelShape:
    return FAMILIES[family].shape({**_COMMON, **dict(zip(_SIZES, sizes, strict=True)), **more})


_EXPERTS = {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}
QWEN3_0_6B = qwen("qwen3", 28, 1024, 16, 8, 3072, 151936, head_dim=128, tie_word_embeddings=True)
QWEN25_7B = qwen("qwen2", 28, 3584, 28, 4, 18944, 152064)
QWEN3_30B = qwen("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, head_dim=128, **_EXPERTS)


def settings(**values: object) -> Sections:
    found, problems = read_given({name.replace("__", "."): value for name, value in values.items()})
    assert found is not None, problems
    return found


def sizes(need: Any) -> dict[str, int]:
    return {item.name: item.size for item in need.items}


@pytest.mark.parametrize(
    ("shape", "count"),
    [(QWEN3_0_6B, 596_049_920), (QWEN25_7B, 7_615_616_512), (QWEN3_30B, 30_532_122_624)],
    ids=["Qwen3-0.6B", "Qwen2.5-7B", "Qwen3-30B-A3B"],
)
def test_parameters_are_those_that_the_models_are_known_to_have(shape: ModelShape, count: int) -> None:
    assert parameters(shape) == count


def test_a_rank_needs_eighteen_bytes_a_parameter_less_with_adapters_and_more_with_another_model() -> None:
    count = parameters(QWEN25_7B)
    alone = sizes(trainer_memory(QWEN25_7B, settings(), 80 * GIB))
    assert (alone["weights"], alone["gradients"], alone["optimizer"]) == (2 * count, 4 * count, 12 * count)
    shared = sizes(trainer_memory(QWEN25_7B, settings(trainer__data_parallel=4), 80 * GIB))
    assert shared["optimizer"] == 3 * count
    whole = sizes(trainer_memory(QWEN25_7B, settings(), None))
    assert (whole["weights"], whole["optimizer"]) == (4 * count, 8 * count)
    count = adapter_parameters(QWEN25_7B, 32)
    found = sizes(trainer_memory(QWEN25_7B, settings(trainer__lora_rank=32), 80 * GIB))
    assert found["gradients"] == 4 * count
    assert found["optimizer"] == 12 * count
    plain = trainer_memory(QWEN3_0_6B, settings(), 80 * GIB)
    with_reference = trainer_memory(QWEN3_0_6B, settings(trainer__kl_coef=0.001), 80 * GIB)
    with_critic = trainer_memory(QWEN3_0_6B, settings(trainer__advantage="gae"), 80 * GIB)
    assert with_reference.total - plain.total == 2 * parameters(QWEN3_0_6B)
    assert with_critic.total - plain.total == 16 * parameters(QWEN3_0_6B)


def test_less_is_kept_of_what_is_computed_again_and_of_what_is_split() -> None:
    kept, again, split = (
        sizes(trainer_memory(QWEN25_7B, settings(trainer__micro_batch_tokens=16_384, **change), 80 * GIB))[
            "activations"
        ]
        for change in ({}, {"trainer__recompute": True}, {"trainer__tensor_parallel": 4})
    )
    assert again < kept / 10
    assert split < kept


def test_attention_on_a_cpu_keeps_float32_beside_bfloat16() -> None:
    tokens = {"trainer__micro_batch_tokens": 4096, "mesh__dtype": "bfloat16"}
    of_cpu, of_gpu = (sizes(trainer_memory(QWEN25_7B, settings(**tokens), memory)) for memory in (None, 80 * GIB))
    # 28 layers of 28 heads and 4 key-value heads of 128
    assert of_cpu["activations"] - of_gpu["activations"] == 4096 * 28 * 4 * (28 + 4) * 128


def test_the_cache_of_a_token_is_as_large_as_its_keys_and_values() -> None:
    found = explorer_memory(QWEN25_7B, settings(mesh__max_model_len=4096), 80 * GIB)
    # 28 layers, 4 key-value heads of 128, 2 bytes, keys and values.
    assert sizes(found)["KV cache of one sequence"] == 4096 * 57_344
    assert found.fits
    assert "room for" in found.notes[0]
    # More GPUs than key-value heads: each head is there twice.
    eight = explorer_memory(QWEN25_7B, settings(mesh__max_model_len=4096, explorer__tensor_parallel_size=8), 80 * GIB)
    assert sizes(eight)["KV cache of one sequence"] == 4096 * 57_344 // 4


def test_an_explorer_on_cpus_has_the_model_three_times_while_versions_come() -> None:
    count, output = parameters(QWEN3_0_6B), 151_936 * 1024
    found = sizes(explorer_memory(QWEN3_0_6B, settings(), None))
    # Packed, the embedding is there beside the output layer, which is the same one.
    assert found["weights"] == found["next version"] == 4 * (count + output)
    assert found["received version"] == 4 * count
    assert found["KV cache"] == GIB
    apart = sizes(explorer_memory(QWEN3_0_6B, settings(mesh__mode="serve"), None))
    assert "next version" not in apart
    assert "received version" not in apart
    # 256 sequences, each in a block of 128 tokens, and one more block: 28 layers, 8 heads of 128, 4 bytes.
    few = sizes(
        explorer_memory(
            QWEN3_0_6B, settings(mesh__max_model_len=100, mesh__max_tokens=1, explorer__max_num_seqs=2), None
        )
    )
    assert few["KV cache"] == 3 * 128 * 2 * 28 * 8 * 128 * 4
    half = sizes(explorer_memory(QWEN3_0_6B, settings(synchronizer__sync_dtype="bfloat16"), None))
    assert half["received version"] == 2 * count
    elsewhere = sizes(explorer_memory(QWEN3_0_6B, settings(explorer__engine_url="http://127.0.0.1:1"), None))
    assert list(elsewhere) == ["processes"]


_SHAPES = {"trainer": QWEN3_0_6B, "explorer": QWEN3_0_6B}


@given(
    total=st.integers(1, 100 * GIB),
    taken=st.integers(0, 100 * GIB),
    explorers=st.integers(0, 3),
    tokens=st.just("auto") | st.integers(1, 1 << 20),
    length=st.integers(2, 32_768),
)
def test_services_fit_a_machine_or_what_to_do_is_said(
    total: int, taken: int, explorers: int, tokens: int | str, length: int
) -> None:
    free = max(total - taken, 0)
    told = settings(trainer__micro_batch_tokens=tokens, mesh__max_model_len=length, mesh__max_tokens=1)
    services = ["coordinator", "trainer", *["explorer"] * explorers]
    found = host_memory(services, told, _SHAPES, total, free)
    assert sorted(name for name, _ in found.needs) == sorted(services)
    assert bool(found.impossible) == (found.needed > total)
    assert bool(found.tight) == (free < found.needed <= total)
    for line in (found.impossible, found.tight):
        assert line == "" or (found.remedy in line and "\n" not in line)
    (trainer,) = (need for name, need in found.needs if name == "trainer")
    if tokens == "auto":
        # What is free is made do with, unless not even one sample fits, computed again.
        assert found.needed <= free or trainer.recompute


def test_the_remedy_is_for_what_is_largest() -> None:
    def remedy(services: list[str], total: int = 8 * GIB, **values: object) -> str:
        return host_memory(services, settings(**values), _SHAPES, total, total).remedy

    assert (
        remedy(["trainer"], 64 * GIB, trainer__micro_batch_tokens=1 << 20) == "set trainer.micro_batch_tokens to auto"
    )
    assert remedy(["explorer"], explorer__cpu_kvcache_gib=20.0) == "set explorer.cpu_kvcache_gib lower"
    assert remedy(["explorer"], explorer__max_num_seqs=4096) == "set explorer.max_num_seqs lower"
    assert remedy(["trainer"], trainer__advantage="gae") == "set trainer.advantage to one without a critic"
    assert remedy(["trainer"], trainer__publish="staged") == "set trainer.publish to durable"
    assert remedy(["trainer"]).startswith("train adapters")


def test_all_ranks_of_a_trainer_are_on_the_machine() -> None:
    one, four = (
        sizes(service_memory("trainer", settings(**values), QWEN3_0_6B))
        for values in ({}, {"trainer__data_parallel": 4})
    )
    assert four["weights"] == 4 * one["weights"]
    assert four["checkpoint"] == 12 * parameters(QWEN3_0_6B)


def test_a_limit_leaves_room_for_what_the_formula_may_be_off() -> None:
    need = service_memory("explorer", settings(), QWEN3_0_6B)
    limit = limit_bytes(need)
    assert limit % (256 << 20) == 0
    assert 0 <= limit - 1.25 * need.total < 256 << 20


def test_a_model_is_spread_until_it_fits() -> None:
    assert spread(QWEN3_0_6B, settings(), Hardware()) == {}
    small = spread(QWEN3_0_6B, settings(), Hardware(trainer_gpus=1, explorer_gpus=1))
    assert small.get("trainer.tensor_parallel", 1) == 1
    large = Hardware(trainer_gpus=4, explorer_gpus=4, gpu_gib=24)
    found = spread(QWEN25_7B, settings(trainer__micro_batch_tokens=16_384), large)
    assert found["trainer.tensor_parallel"] == 4
    assert found["trainer.recompute"] is True
    many = spread(QWEN3_30B, settings(), Hardware(trainer_gpus=8, explorer_gpus=2))
    changed = settings(**{name.replace(".", "__"): value for name, value in many.items()})
    layout_rules.check(changed.trainer, QWEN3_30B, "megatron")
    assert changed.trainer.ranks == 8
    assert explorer_memory(QWEN3_30B, changed, 80 * GIB).fits


@pytest.mark.parametrize(("divided", "engines", "ranks"), [(1, 1, 1), (8, 2, 4), (64, 8, 8)])
def test_no_gpu_holds_a_version_beside_the_model(divided: int, engines: int, ranks: int) -> None:
    for shape in (QWEN25_7B, QWEN3_30B):
        rows = {row.what: row for row in moved(shape, divided=divided, engines=engines, engine_ranks=ranks)}
        assert rows["a version"].nbytes == 2 * parameters(shape)
        assert sum(row.versions for what, row in rows.items() if what.startswith("more on a GPU")) < 0.6
        assert rows["in the host memory of an engine"].versions == 1
        assert rows["into all explorers' machines"].versions == engines
        assert rows["into each GPU of an engine, in the pause"].versions * ranks == 1


WITH_GPUS: Final = [size for size in SIZES if values(size)["device"] == "gpu"]
_GPU: Final = 80 * GIB
_COMPOSE: Final = "mesh.gpu.toml"
_COMPOSE_MODEL: Final = "Qwen3-0.6B"
"""That the file of compose names as an example."""


def shipped() -> Iterator[tuple[str, str, Sections]]:
    """Each file, its model, and its settings."""
    for size in WITH_GPUS:
        settings = Sections(**values(size)["settings"])
        yield f"values-{size}.yaml", str(settings.mesh.model_path), settings
    compose = tomllib.loads((ROOT / "deploy" / "docker-compose" / _COMPOSE).read_text(encoding="utf-8"))
    yield _COMPOSE, _COMPOSE_MODEL, Sections(**compose)


@pytest.mark.parametrize(("model", "settings"), [pytest.param(*rest, id=name) for name, *rest in shipped()])
def test_trainer_and_engines_fit_their_gpus(model: str, settings: Sections) -> None:
    for need in (memory(shape_of(model), settings, _GPU) for memory in (trainer_memory, explorer_memory)):
        assert need.fits, f"{need.total / GIB:.1f} of {(need.available or 0) / GIB:.1f} GiB: {need.items}"
