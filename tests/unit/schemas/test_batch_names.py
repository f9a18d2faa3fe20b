from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from schemas.batch import escaped, readable
from schemas.record import Identifier

IDENTIFIER: TypeAdapter[str] = TypeAdapter(Identifier)


@given(st.text(min_size=1, max_size=20))
def test_any_text_becomes_an_identifier_that_is_its_own(text: str) -> None:
    name = escaped(text)
    assert IDENTIFIER.validate_python(name) == name
    assert "#" not in name
    assert escaped(name) == name
    if text.isprintable() and "u:" not in text:
        assert readable(name) == text


def test_what_is_an_identifier_or_cannot_be_shown_stays_as_it_is() -> None:
    for name in ("7", "2/held-out", "3@1f2e3d4c.2", "a.b_c:d/e@f-g"):
        assert escaped(name) == readable(name) == name
    for name in ("u:d83d:", "u:110000:", "u:ffffff:", "u:0a:", "u:1b:", "u::", "u:5B:"):
        assert readable(name) == name
