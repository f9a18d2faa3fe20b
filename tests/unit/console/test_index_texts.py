"""Text of tokens by a table: the same as the tokenizer says, a byte for a byte."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.chat.models import FAMILIES, tokenizer_of
from trinity_bus.console.index.group_rows import load_texts


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_says_what_the_tokenizer_says(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(family)
    monkeypatch.setattr("trinity_bus.console.index.group_rows.load_tokenizer", lambda _: tokenizer)
    texts = load_texts(str(tmp_path))
    assert not isinstance(texts, str)
    rng = np.random.default_rng(0)
    # Drawn at random, tokens make bytes that are no letters.
    drawn = [rng.integers(0, len(tokenizer), length).tolist() for length in range(200)]
    said = tokenizer("\u00fc\u4e2d \U0001f642 a \u202e\0 <|im_end|>\n").input_ids
    assert texts([*drawn, said]) == tokenizer.batch_decode([*drawn, said])
    assert texts([[-1, 2**31 - 1, len(tokenizer) + 1], []]) == ["", ""]
    assert texts([]) == []
