"""The character tokenizer of FAKE engines, for runners: a token per character, no model."""

from trinity_bus.testing import CharacterTokenizer


def load(model_path: str) -> CharacterTokenizer:
    """What a fork server calls."""
    return CharacterTokenizer()
