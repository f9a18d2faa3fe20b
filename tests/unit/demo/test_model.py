import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from trinity_bus.chat import renderer_for
from trinity_bus.chat.encoding import load_tokenizer
from trinity_bus.chat.rendering import DrawnTurn
from workers.demo.model import DIGITS, make_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), seed=5)


def test_weights_follow_from_the_seed_alone(folder: Path, tmp_path: Path) -> None:
    again, other = make_model(tmp_path / "again", seed=5), make_model(tmp_path / "other", seed=6)
    weights = load_file(folder / "model.safetensors")
    same, different = load_file(again / "model.safetensors"), load_file(other / "model.safetensors")
    assert weights.keys() == same.keys() == different.keys()
    for name, tensor in weights.items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, same[name])
    assert sum(tensor.size for tensor in weights.values()) == pytest.approx(297_000, rel=0.01)
    assert not np.array_equal(weights["model.embed_tokens.weight"], different["model.embed_tokens.weight"])


def test_the_tokenizer_is_one_of_words(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = tokenizer.encode("copy 3 1 4 =")
    assert encoded.tokens == ["<bos>", "copy", "3", "1", "4", "="]
    assert encoded.ids == [DIGITS.vocabulary.index(word) for word in encoded.tokens]
    assert tokenizer.decode([*encoded.ids, DIGITS.vocabulary.index("<eos>")]) == "copy 3 1 4 ="
    assert tokenizer.encode("copy horse").tokens == ["<bos>", "copy", "<unk>"]


def test_a_message_is_written_as_the_prompt_that_it_is_trained_on(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    renderer = renderer_for(tokenizer)
    asked = renderer.prompt([{"role": "user", "content": "copy 3 1 4 ="}], None)
    assert asked == tokenizer.encode("copy 3 1 4 =")
    drawn = DrawnTurn(asked, tokenizer.encode("3 1 4 <eos>", add_special_tokens=False), ended=True)
    told = renderer.extension(drawn, [{"role": "user", "content": "copy 2 7 1 ="}], None)
    assert told == tokenizer.encode("copy 2 7 1 =", add_special_tokens=False)


@pytest.mark.parametrize(("ends", "expected"), [((), ["<eos>"]), (("=",), ["<eos>", "="])])
def test_engines_find_what_ends_a_response(ends: tuple[str, ...], expected: list[str], tmp_path: Path) -> None:
    language = replace(DIGITS, ends=ends)
    found = json.loads((make_model(tmp_path, 0, language) / "generation_config.json").read_text())["eos_token_id"]
    assert [language.vocabulary[one] for one in found] == expected
