"""The tokenizer that makes text of samples, or why there is none.

Those of most models are byte-level: each token is some bytes, and a text is those of its tokens, one after the other. A
table of them does that in a third of the time that the tokenizer takes. Tokens that there are not have no text.
"""

from collections.abc import Sequence
from itertools import accumulate, count, pairwise
from typing import Any, Final

import numpy as np

from trinity_bus.chat.encoding import load_tokenizer
from trinity_bus.chat.formats import format_of
from trinity_bus.console.index.group_rows import Texts, Tokens
from trinity_bus.errors import ConfigError
from trinity_bus.hub import model_folder


class ModelTexts:
    """Text of a model's tokens, by its tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        # Tokens that stand for no text: what templates are made of
        self.special: frozenset[int] = frozenset(tokenizer.all_special_ids)
        # Finds the tools that the model calls in the text of a turn, as its template has it write them
        self.read = format_of(str(getattr(tokenizer, "chat_template", None) or ""))
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        is_byte_level = backend is not None and type(backend.decoder).__name__ == "ByteLevel"
        self._texts = byte_level_texts(backend.get_vocab()) if is_byte_level else _asking(tokenizer)

    def __call__(self, tokens: Sequence[Tokens]) -> Sequence[str]:
        """Return their text, special tokens too."""
        return self._texts(tokens)


def load_texts(model_path: str | None) -> ModelTexts | str:
    """Return what makes text of tokens; or why nothing does, in one line."""
    if model_path is None:
        return "samples have no text: set console.model_path to the model's folder, for its tokenizer"
    try:
        folder = model_folder(model_path, weights=False)
        if not folder.is_dir():
            return f"samples have no text: console.model_path = {model_path!r} is no folder"
        return ModelTexts(load_tokenizer(str(folder)))
    except ConfigError as error:
        return f"samples have no text: {error}"
    except ModuleNotFoundError:
        return "samples have no text: the tokenizer needs transformers, pip install 'trinity-bus[console]'"
    except (OSError, ValueError) as error:
        return f"samples have no text: {model_path} has no tokenizer that can be read: {error}"


def _asking(tokenizer: Any) -> Texts:
    # What asks the tokenizer. Some leave out what they do not know, others fail.
    words = len(tokenizer)

    def texts(tokens: Sequence[Tokens]) -> Sequence[str]:
        known = [[token for token in np.asarray(each).tolist() if 0 <= token < words] for each in tokens]
        found: Sequence[str] = tokenizer.batch_decode(known)
        return found

    return texts


def byte_level_texts(vocabulary: dict[str, int]) -> Texts:
    """Return what makes text by a table."""
    # Nothing at both ends, for numbers beyond.
    table = np.full(max(vocabulary.values(), default=0) + 3, b"", object)
    for token, number in vocabulary.items():
        # Tokens that were added to it by hand are not written so.
        known = all(letter in _BYTES for letter in token)
        table[number + 1] = bytes(_BYTES[letter] for letter in token) if known else token.encode()

    def texts(tokens: Sequence[Tokens]) -> Sequence[str]:
        # All at once: to look them up text by text would take longer than the lookup.
        numbers = np.concatenate([*tokens, []], dtype=np.int64, casting="unsafe")
        pieces = table.take(numbers + 1, mode="clip").tolist()
        ends = accumulate(map(len, tokens), initial=0)
        return [b"".join(pieces[begin:end]).decode("utf-8", "replace") for begin, end in pairwise(ends)]

    return texts


def _letters_of_bytes() -> dict[str, int]:
    # The byte that each letter stands for, as GPT-2's encoder has it: what can be seen for itself
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = count(0x100)
    return {chr(byte if byte in seen else next(others)): byte for byte in range(256)}


_BYTES: Final = _letters_of_bytes()
