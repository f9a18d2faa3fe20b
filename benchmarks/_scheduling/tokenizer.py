"""The tokenizer of the FAKE engine's explorer, for its runners."""

from trinity_bus.chat.rendering import TemplateOptions
from trinity_bus.testing import CharacterTokenizer


class PlainTokenizer(CharacterTokenizer):
    chat_template = None


def load(model_path: str, options: TemplateOptions, how: object) -> PlainTokenizer:
    del model_path, options, how
    return PlainTokenizer()
