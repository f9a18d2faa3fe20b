import re
import time
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.console.web.render import hostile, line

TAGS = re.compile(r'</?span(?: class="mark" title="[^"<>]*")?>')


def test_markup_is_text_and_escapes_of_terminals_are_shown() -> None:
    for attack in ("<script>alert(1)</script>", "&lt;b&gt; is no tag, and stays so", "{{ 7 * 7 }} {% raw %}"):
        assert unescape(str(hostile(attack))) == attack
    shown = str(hostile("\x1b[31mred\x1b[0m\x07\x9b2J"))
    assert shown.count("␛") == 2
    assert "[31mred" in shown


@pytest.mark.parametrize(
    "mark", ["\u202e", "\u2066", "\u200f", "\u061c", "\u200b", "\ufeff", "\u00ad", "\u2028", "\ud83d"]
)
def test_marks_that_hide_or_turn_text_are_shown_by_their_names(mark: str) -> None:
    shown = str(hostile(f"safe{mark}txt.exe"))
    shown.encode()
    assert f"[U+{ord(mark):04X}]" in shown


def test_letters_are_left_as_they_are_but_for_many_marks_upon_one_and_ends_of_lines() -> None:
    text = "中文 العربية עברית हिन्दी 日本語 é 👍 ½ \u3000"
    assert unescape(str(hostile(text))) == text
    shown = str(hostile("a" + "\u0301" * 50))
    assert shown.count("\u0301") <= 4
    assert "\n" not in line("a\nb\r\nc\td")
    assert line("a\nb") == "a⏎b"


def test_a_line_of_a_mebibyte_or_of_marks_alone_is_cut_and_says_by_how_much() -> None:
    began = time.process_time()
    shown = str(hostile("<" * (1 << 20), most=1000))
    assert time.process_time() - began < 1
    assert shown.count("&lt;") == 1000
    assert "1,047,576 more characters" in shown
    shown = str(hostile("a" + "\u202e\u200b" * 10_000))
    assert shown.count("[U+") == 1000
    assert shown.endswith("[19,000 more characters]</span>")
    assert len(shown) < 100_000


@given(st.text(alphabet=st.characters(), max_size=300))
def test_nothing_that_is_written_becomes_markup(text: str) -> None:
    shown = str(hostile(text))
    assert "<" not in TAGS.sub("", shown)
    assert all(c.isprintable() or c in "\n\t\u3000" for c in shown)
