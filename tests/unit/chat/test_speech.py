from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.support.chat.models import CORPUS, END, FAMILIES, tokenizer_of
from trinity_bus.chat import Completion, Session, renderer_for
from trinity_bus.chat.rendering import DrawnTurn, Speech
from trinity_bus.testing import CharacterTokenizer

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
MARKS = ["<think>", "</think>", "\n", "<tool", CALL, "<function="]


def blanks_tokenizer() -> Any:
    """Return a tokenizer whose words begin with blanks, of which a text loses its first, as SentencePiece's have it."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    alphabet = sorted({*CALL, *"<think>STOP3é日本\n"})
    bpe.train_from_iterator(CORPUS, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    template = "{% for one in messages %}{{ one.content }}{% endfor %}"
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=template)


parts = st.sampled_from([*MARKS, " ", "So ", "3 < 4", "é", "日本", "{", '{"name": "x"}', "STOP", "ST"])
TOKENIZERS = {**{family: tokenizer_of(family) for family in FAMILIES}, "blanks": blanks_tokenizer()}


@pytest.mark.parametrize("family", FAMILIES)
@given(texts=st.lists(parts, max_size=8), sizes=st.lists(st.integers(1, 5), min_size=1), stop=st.booleans())
def test_what_was_shown_is_what_it_reads_as(family: str, texts: list[str], sizes: list[int], stop: bool) -> None:
    tokenizer = TOKENIZERS[family]
    renderer = renderer_for(tokenizer)
    ids = tokenizer.encode("".join(texts) + END[family], add_special_tokens=False)
    stops = ("STOP",) if stop else ()
    speech = renderer.speech([], stops)
    shown, at, turn = "", 0, 0
    while at < len(ids):
        size = sizes[turn % len(sizes)]
        shown += speech.hear(ids[at : at + size])
        at, turn = at + size, turn + 1
    content = renderer.read(DrawnTurn([], ids, True), None).content
    for text in stops:
        content = content.partition(text)[0]
    # Blanks at the ends of a turn mean nothing.
    assert (shown + speech.end(content)).strip() == content.strip()
    assert content.strip().startswith(shown.strip())


@pytest.mark.parametrize("family", TOKENIZERS)
@given(texts=st.lists(parts, max_size=6), begun=st.lists(parts, min_size=1, max_size=3))
def test_of_a_turn_that_was_begun_the_rest_is_shown(family: str, texts: list[str], begun: list[str]) -> None:
    tokenizer = TOKENIZERS[family]
    session = Session(renderer_for(tokenizer))
    prompt = session.prompt([{"role": "user", "content": "So?"}], None, None, "".join(begun).rstrip())
    ids = tokenizer.encode("".join(texts), add_special_tokens=False)
    speech = session.speech(prompt, ("STOP",))
    shown = "".join(speech.hear([one]) for one in ids)
    content = session.add(prompt, Completion(ids, [-1.0] * len(ids), "stop", [(0, 1)]), ("STOP",)).content
    assert (shown + speech.end(content)).strip() == content.strip()
    assert content.strip().startswith(shown.strip())


def test_a_turn_that_was_begun_goes_on_after_a_blank_and_what_was_begun_is_not_said_again() -> None:
    tokenizer = TOKENIZERS["blanks"]
    session = Session(renderer_for(tokenizer))
    for begun in ("The answer", "<think></think>The answer"):
        prompt = session.prompt([{"role": "user", "content": "So?"}], None, None, begun)
        ids = tokenizer.encode("is 42", add_special_tokens=False)
        speech = session.speech(prompt)
        assert "".join(speech.hear([one]) for one in ids) == " is 42"
        assert session.add(prompt, Completion(ids, [-1.0] * len(ids), "stop", [(0, 1)])).content == " is 42"


def test_content_is_shown_at_once_and_marks_stops_and_reasoning_are_held() -> None:
    speech = Speech(CharacterTokenizer(), (), stop=("STOP",))
    heard = [speech.hear([ord(character)]) for character in "<think>x</think>\n\nHi <b> STO"]
    assert "".join(heard) == "Hi <b>"
    assert speech.hear([ord("P")]) == ""
    assert speech.end("Hi <b> ") == " "
    speech = Speech(CharacterTokenizer(), (), opened=True)
    assert speech.hear([ord(character) for character in "so 3</think>3"]) == "3"
