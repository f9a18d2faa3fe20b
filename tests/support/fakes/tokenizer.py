"""The character tokenizer of FAKE engines, for runners: a token per character, no model."""

from trinity_bus.chat.rendering import TemplateOptions
from trinity_bus.testing import CharacterTokenizer


def load(model_path: str, options: TemplateOptions, how: object) -> CharacterTokenizer:
    """What a fork server calls."""
    del model_path, options, how
    return CharacterTokenizer()
