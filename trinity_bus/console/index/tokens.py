"""The tokenizer that makes text of samples, or why there is none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinity_bus.console.index.group_rows import Texts
from trinity_bus.rollout.tokenizer import load_tokenizer


def load_texts(model_path: str | None) -> Texts | str:
    """Return what makes text of tokens; or why nothing does, in one line.

    Args:
        model_path: Folder of the model.
    """
    if model_path is None:
        return "samples have no text: set console.model_path to the model's folder, for its tokenizer"
    if not Path(model_path).is_dir():
        return f"samples have no text: console.model_path = {model_path!r} is no folder"
    try:
        tokenizer: Any = load_tokenizer(model_path)
    except ModuleNotFoundError:
        return "samples have no text: the tokenizer needs transformers, pip install 'trinity-bus[console]'"
    except (OSError, ValueError) as error:
        return f"samples have no text: {model_path} has no tokenizer that can be read: {error}"

    words = len(tokenizer)

    def texts(tokens: list[list[int]]) -> Sequence[str]:
        # Another model's may be more; some tokenizers leave those out, others fail.
        known = [
            each if max(each, default=0) < words else [token for token in each if token < words] for each in tokens
        ]
        found: Sequence[str] = tokenizer.batch_decode(known)
        return found

    return texts
