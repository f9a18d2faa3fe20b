"""A demo's model: a Qwen3 of random weights and a tokenizer of a few words, as a Hugging Face folder; or SmolLM2.

The first is written with numpy: making it needs no machine-learning framework and takes no second. Its weights follow
from the seed alone.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from trinity_bus.config import Settings

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    words: tuple[str, ...]  # Beside the marks. Those that are no such word are ``<unk>``.
    chat_template: str  # How messages are written
    ends: tuple[str, ...] = ()  # Words that end a response, beside the mark for it

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All tokens; the id of one is its place."""
        return (PAD, BOS, EOS, UNKNOWN, *self.words)


SMOLLM2: Final = "SmolLM2-135M-Instruct"  # What is taught where the weights are not random
MAX_LENGTH: Final = 64  # Most tokens of prompt and response together
DIGITS: Final = Language(
    words=("=", "copy", *"0123456789"),
    chat_template="{{ bos_token }}{% for message in messages %} {{ message.content }}"
    "{% if message.role == 'assistant' %} {{ eos_token }}{% endif %}{% endfor %}",
)
_HIDDEN, _LAYERS, _HEADS, _KV_HEADS, _HEAD_DIM, _INTERMEDIATE = 128, 2, 4, 2, 32, 256
_INIT_STD: Final = 0.02


def make_model(folder: Path, seed: int, language: Language = DIGITS) -> Path:
    """Write a model of about 0.3 M float32 parameters, with random weights, and its tokenizer; return ``folder``."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config(language))
    ends = [language.vocabulary.index(word) for word in (EOS, *language.ends)]
    ids = {"bos_token_id": _id(BOS), "eos_token_id": ends, "pad_token_id": _id(PAD)}
    _write_json(folder / "generation_config.json", ids)
    _write_tokenizer(folder, language)
    weights = _weights(np.random.default_rng(seed), len(language.vocabulary))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def pretrained_folder(settings: "Settings") -> Path:
    """Return where ``SMOLLM2`` is kept, which ``tools/smollm2.sh`` makes."""
    from trinity_bus.broker.layout import cache_dir

    return cache_dir(settings.broker) / "models" / SMOLLM2


def _config(language: Language) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": len(language.vocabulary),
        "hidden_size": _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "intermediate_size": _INTERMEDIATE,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "initializer_range": _INIT_STD,
        "bos_token_id": _id(BOS),
        "eos_token_id": _id(EOS),
        "pad_token_id": _id(PAD),
        "dtype": "float32",
    }


def _weights(rng: np.random.Generator, vocabulary: int) -> dict[str, NDArray[np.float32]]:
    # Draw from a normal distribution with a standard deviation of 0.02, as Qwen3 starts; norms are ones

    def normal(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(_INIT_STD)

    def ones(size: int) -> NDArray[np.float32]:
        return np.ones(size, np.float32)

    tensors = {"model.embed_tokens.weight": normal(vocabulary, _HIDDEN), "model.norm.weight": ones(_HIDDEN)}
    queries, keys = _HEADS * _HEAD_DIM, _KV_HEADS * _HEAD_DIM
    for i in range(_LAYERS):
        layer = f"model.layers.{i}"
        tensors |= {
            f"{layer}.input_layernorm.weight": ones(_HIDDEN),
            f"{layer}.self_attn.q_proj.weight": normal(queries, _HIDDEN),
            f"{layer}.self_attn.k_proj.weight": normal(keys, _HIDDEN),
            f"{layer}.self_attn.v_proj.weight": normal(keys, _HIDDEN),
            f"{layer}.self_attn.o_proj.weight": normal(_HIDDEN, queries),
            f"{layer}.self_attn.q_norm.weight": ones(_HEAD_DIM),
            f"{layer}.self_attn.k_norm.weight": ones(_HEAD_DIM),
            f"{layer}.post_attention_layernorm.weight": ones(_HIDDEN),
            f"{layer}.mlp.gate_proj.weight": normal(_INTERMEDIATE, _HIDDEN),
            f"{layer}.mlp.up_proj.weight": normal(_INTERMEDIATE, _HIDDEN),
            f"{layer}.mlp.down_proj.weight": normal(_HIDDEN, _INTERMEDIATE),
        }
    return tensors


def _write_tokenizer(folder: Path, language: Language) -> None:
    # Words at blanks; a beginning-of-sequence token in front, as most language models have it
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    places = {word: i for i, word in enumerate(language.vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(places, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, _id(BOS))])
    tokenizer.add_special_tokens([PAD, BOS, EOS, UNKNOWN])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "bos_token": BOS,
            "eos_token": EOS,
            "unk_token": UNKNOWN,
            "model_max_length": MAX_LENGTH,
            "clean_up_tokenization_spaces": False,
            "chat_template": language.chat_template,
        },
    )


def _id(mark: str) -> int:
    return DIGITS.vocabulary.index(mark)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
