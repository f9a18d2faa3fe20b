"""A FAKE tokenizer for runners: a token per character, no model. It says so in its name."""

from collections.abc import Sequence


class FakeTokenizer:
    """A token per character."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))


def load(model_path: str) -> FakeTokenizer:
    """What a fork server calls."""
    return FakeTokenizer()
