"""Random Qwen3 models with a word-level tokenizer, small enough to make in a second.

The weights are drawn with a wide spread so that different seeds give clearly different distributions; a model drawn
with the usual 0.02 is nearly uniform over its vocabulary and would hide a weight that never arrived.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """Sizes of a model; the defaults have about 0.6 M parameters."""

    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    vocab_size: int = 512
    max_position_embeddings: int = 512
    tie_word_embeddings: bool = False
    initializer_range: float = 0.1


TINY = TinyShape()
SMALL = TinyShape(
    hidden_size=384,
    intermediate_size=1152,
    num_hidden_layers=6,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=64,
    vocab_size=4096,
    initializer_range=0.05,
)
"""About 15 M parameters."""


def make_tiny_qwen3(folder: Path, *, seed: int, shape: TinyShape = TINY) -> Path:
    """Write a random float32 Qwen3 checkpoint and a tokenizer of words ``t3 t4 ...`` to ``folder``."""
    from dataclasses import asdict

    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    config = Qwen3Config(**asdict(shape), eos_token_id=1, bos_token_id=None, pad_token_id=0, dtype="float32")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    write_tokenizer(folder, shape.vocab_size)
    return folder


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"t{i}": i for i in range(3, vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106 (a vocabulary word, no secret)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
        unk_token="<unk>",  # noqa: S106
    ).save_pretrained(folder)
