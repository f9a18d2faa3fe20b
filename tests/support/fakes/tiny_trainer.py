"""Models so small that a step takes milliseconds."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, HEADS, GROUPS, HEAD_DIM, MLP, LAYERS = 32, 4, 2, 8, 48, 2
EXPERTS, EXPERT_MLP, EXPERTS_PER_TOKEN = 4, 24, 2


ROPE: dict[str, dict[str, object]] = {
    "qwen3": {"rope_type": "default", "rope_theta": 10000.0},
    "qwen3_moe": {"rope_type": "default", "rope_theta": 10000.0},
    "qwen2": {"rope_type": "default", "rope_theta": 1000000.0},
    # A base so large that some wavelengths are scaled, some are not, and some are in between.
    "llama": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
"""Of each family; its keys are the families that there are models of."""


def write_model(
    folder: Path,
    *,
    family: str = "qwen3",
    vocabulary: int = 32,
    tied: bool = True,
    seed: int = 0,
    layers: int = LAYERS,
) -> Path:
    """A model with random weights, as Hugging Face would save it."""
    folder.mkdir(parents=True)
    config = {
        "architectures": [f"{family.title().replace('_', '')}ForCausalLM"],
        "model_type": family,
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": HEAD_DIM,
        "intermediate_size": MLP,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_parameters": ROPE[family],
        "tie_word_embeddings": tied,
        "dtype": "float32",
    }
    if family == "qwen3_moe":
        config |= {
            "num_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS_PER_TOKEN,
            "moe_intermediate_size": EXPERT_MLP,
            "norm_topk_prob": True,
        }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    shapes = {"model.embed_tokens": (vocabulary, HIDDEN), "model.norm": (HIDDEN,)}
    if not tied:
        shapes["lm_head"] = (vocabulary, HIDDEN)
    for layer in range(layers):
        shapes |= {
            f"model.layers.{layer}.{name}": shape
            for name, shape in {
                "input_layernorm": (HIDDEN,),
                "post_attention_layernorm": (HIDDEN,),
                "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
                "self_attn.k_proj": (GROUPS * HEAD_DIM, HIDDEN),
                "self_attn.v_proj": (GROUPS * HEAD_DIM, HIDDEN),
                "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
                **(_experts() if family == "qwen3_moe" else _mlp("mlp", MLP)),
                **({"self_attn.q_norm": (HEAD_DIM,), "self_attn.k_norm": (HEAD_DIM,)} if "qwen3" in family else {}),
            }.items()
        }
    generator = torch.Generator().manual_seed(seed)
    weights = {
        f"{name}.weight": torch.randn(shape, generator=generator) * 0.1 + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }
    if family == "qwen2":
        weights |= {
            f"{name}.bias": torch.randn(shape[0], generator=generator) * 0.1
            for name, shape in shapes.items()
            if name.endswith(("q_proj", "k_proj", "v_proj"))
        }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _mlp(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.gate_proj": (width, HIDDEN),
        f"{name}.up_proj": (width, HIDDEN),
        f"{name}.down_proj": (HIDDEN, width),
    }


def _experts() -> dict[str, tuple[int, ...]]:
    experts: dict[str, tuple[int, ...]] = {"mlp.gate": (EXPERTS, HIDDEN)}
    for expert in range(EXPERTS):
        experts |= _mlp(f"mlp.experts.{expert}", EXPERT_MLP)
    return experts
