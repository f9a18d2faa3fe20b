import re
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from trinity_bus.console.index.answers import RowPage
from trinity_bus.console.web.render import Frame, Pages
from trinity_bus.console.web.who import Visitor

VISITOR = Visitor("me", "viewer", "proof")


def frame(link: str, until: float | None = None) -> Frame:
    """Return that of a request for a link."""
    parts = urlsplit(link)
    pairs = parse_qsl(parts.query)
    return Frame(namespace="here", visitor=VISITOR, path=parts.path, query=dict(pairs), pairs=pairs, until=until)


def steps(link: str, after: str | None, until: float | None = None) -> dict[str, str]:
    """Return the links of an empty page of a list, by their texts."""
    page: RowPage[Any] = RowPage([], after)
    html = Pages().render("steps.html", frame(link, until), page=page, trainers=[], trainer=None)
    return {text: unescape(href) for href, text in re.findall(r'href="([^"]*)"[^>]*>([^<]+)</a>', html)}


def test_back_to_now_keeps_what_was_asked() -> None:
    links = steps("/steps?run=a&run=b&metric=x y", None, until=5.0)
    assert links["Back to now"] == "/steps?run=a&run=b&metric=x+y"
    assert steps("/steps", None, until=5.0)["Back to now"] == "/steps"


def test_a_list_leads_on_and_to_its_newest_page() -> None:
    links = steps("/steps?trainer=t&after=90", "80")
    assert links["Older"] == "/steps?trainer=t&after=80"
    assert links["Newest"] == "/steps?trainer=t"
    assert "Newest" not in steps("/steps", "80")
    assert "Older" not in steps("/steps?after=80", None)
