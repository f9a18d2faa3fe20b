"""How much memory a mesh needs: held against known models, and against what the trainer and vLLM say of themselves."""

from typing import Any

import pytest

from trinity_bus.config.given import read_given
from trinity_bus.config.sections import Sections
from trinity_bus.sizing import GIB, Hardware, adapter_parameters, explorer_memory, parameters, spread, trainer_memory
from trinity_bus.sizing.versions import moved
from trinity_bus.training import layout_rules
from trinity_bus.training.families import FAMILIES, ModelShape

_COMMON = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960}
QWEN3_0_6B = FAMILIES["qwen3"].shape(
    {
        **_COMMON,
        "num_hidden_layers": 28,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
)
QWEN25_7B = FAMILIES["qwen2"].shape(
    {
        **_COMMON,
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
    }
)
QWEN3_30B = FAMILIES["qwen3_moe"].shape(
    {
        **_COMMON,
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "vocab_size": 151936,
    }
)


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


def test_a_rank_needs_eighteen_bytes_a_parameter_in_bfloat16_and_less_with_copies() -> None:
    count = parameters(QWEN25_7B)
    alone = sizes(trainer_memory(QWEN25_7B, settings(), 80 * GIB))
    assert (alone["weights"], alone["gradients"], alone["optimizer"]) == (2 * count, 4 * count, 12 * count)
    shared = sizes(trainer_memory(QWEN25_7B, settings(trainer__data_parallel=4), 80 * GIB))
    assert shared["optimizer"] == 3 * count
    whole = sizes(trainer_memory(QWEN25_7B, settings(), None))
    assert (whole["weights"], whole["optimizer"]) == (4 * count, 8 * count)


def test_adapters_have_gradients_and_moments_and_the_model_has_none() -> None:
    count = adapter_parameters(QWEN25_7B, 32)
    found = sizes(trainer_memory(QWEN25_7B, settings(trainer__lora_rank=32), 80 * GIB))
    assert found["gradients"] == 4 * count
    assert found["optimizer"] == 12 * count


def test_what_costs_a_copy_of_the_model_is_counted() -> None:
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


def test_the_cache_of_a_token_is_as_large_as_its_keys_and_values() -> None:
    found = explorer_memory(QWEN25_7B, settings(mesh__max_model_len=4096), 80 * GIB)
    # 28 layers, 4 key-value heads of 128, 2 bytes, keys and values.
    assert sizes(found)["KV cache of one sequence"] == 4096 * 57_344
    assert found.fits
    assert "room for" in found.notes[0]
    # More GPUs than key-value heads: each head is there twice.
    eight = explorer_memory(QWEN25_7B, settings(mesh__max_model_len=4096, explorer__tensor_parallel_size=8), 80 * GIB)
    assert sizes(eight)["KV cache of one sequence"] == 4096 * 57_344 // 4


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
