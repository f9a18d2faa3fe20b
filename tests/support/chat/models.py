"""Tokenizers of the families of models that conversations are tested with.

A byte-level BPE, trained here on a few sentences, with each family's marks and a chat template that is written as the
family's own is. Real in all but the size of its vocabulary.
"""

from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and nobody knows why it does so every day.",
    'To add two numbers call the tool: {"name": "add", "arguments": {"a": 1, "b": 2}}.',
    "Let me think about this first. The answer is 42, and so the result of the sum is forty-two.",
    "user assistant system tool what is the weather in Paris and in London today please answer",
]
QWEN = (
    ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"],
)
LLAMA: tuple[list[str], list[str]] = (
    ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"],
    [],
)
MARKS = {"qwen25": QWEN, "qwen3": QWEN, "llama3": LLAMA}
END = {"qwen25": "<|im_end|>", "qwen3": "<|im_end|>", "llama3": "<|eot_id|>"}
FAMILIES = sorted(MARKS)
PACKAGED = "Qwen/Qwen3-0.6B"
"""A model whose renderer the package ``renderers`` has."""
RENDERED = [*((family, "") for family in FAMILIES), ("qwen3", PACKAGED)]
"""Each family by its template, and the one that the package knows by its renderer."""


@cache
def tokenizer_of(family: str, name: str = "") -> Any:
    """Return the tokenizer of one of ``FAMILIES``, or of one of its models."""
    special, plain = MARKS[family]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False))
    bpe.add_special_tokens([AddedToken(mark, special=True) for mark in special])
    bpe.add_tokens([AddedToken(mark, special=False) for mark in plain])
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END[family],
        bos_token=special[0] if family == "llama3" else None,
        # Llama's names no more than these, though all are special.
        additional_special_tokens=[] if family == "llama3" else special,
        chat_template=(HERE / f"{family}.jinja").read_text(),
    )
    if name:
        tokenizer.name_or_path = name
    return tokenizer
