"""The tokenizer that makes text of samples, or why there is none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinity_bus.rollout.tokenizer import load_tokenizer


class ModelTexts:
    """Makes text of a model's tokens.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._words = len(tokenizer)
        self.special: frozenset[int] = frozenset(tokenizer.all_special_ids)
        """Tokens that stand for no text: what templates are made of."""

    def __call__(self, tokens: list[list[int]]) -> Sequence[str]:
        """Return their text, special tokens too."""
        # Another model's may be more; some tokenizers leave those out, others fail.
        known = [
            each if max(each, default=0) < self._words else [token for token in each if token < self._words]
            for each in tokens
        ]
        found: Sequence[str] = self._tokenizer.batch_decode(known)
        return found


def load_texts(model_path: str | None) -> ModelTexts | str:
    """Return what makes text of tokens; or why nothing does, in one line.

    Args:
        model_path: Folder of the model.
    """
    if model_path is None:
        return "samples have no text: set console.model_path to the model's folder, for its tokenizer"
    if not Path(model_path).is_dir():
        return f"samples have no text: console.model_path = {model_path!r} is no folder"
    try:
        return ModelTexts(load_tokenizer(model_path))
    except ModuleNotFoundError:
        return "samples have no text: the tokenizer needs transformers, pip install 'trinity-bus[console]'"
    except (OSError, ValueError) as error:
        return f"samples have no text: {model_path} has no tokenizer that can be read: {error}"
