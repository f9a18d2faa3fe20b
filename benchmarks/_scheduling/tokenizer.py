"""A FAKE tokenizer for the runners of the fake engine's explorer."""

from collections.abc import Sequence

from trinity_bus.chat.renderer import TemplateOptions


class FakeTokenizer:
    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        del add_special_tokens
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        del skip_special_tokens
        return "".join(map(chr, token_ids))


def load(model_path: str, options: TemplateOptions, **limits: object) -> FakeTokenizer:
    del model_path, options, limits
    return FakeTokenizer()
