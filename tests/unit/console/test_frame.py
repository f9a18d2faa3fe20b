import re
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from trinity_bus.console.index.answers import RowPage
from trinity_bus.console.web.render import MAX_QUERY, Frame, Pages
from trinity_bus.console.web.who import Visitor

VISITOR = Visitor("me", "viewer", "proof")


def frame(link: str, until: float | None = None) -> Frame:
    """Return that of a request for a link."""
    parts = urlsplit(link)
    return Frame(namespace="here", visitor=VISITOR, path=parts.path, query=dict(parse_qsl(parts.query)), until=until)


def steps(link: str, after: str | None, until: float | None = None) -> dict[str, str]:
    """Return the links of an empty page of a list, by their texts."""
    page: RowPage[Any] = RowPage([], after)
    html = Pages().render("steps.html", frame(link, until), page=page, trainers=[], trainer=None)
    return {text: unescape(href) for href, text in re.findall(r'href="([^"]*)"[^>]*>([^<]+)</a>', html)}


def test_back_to_now_keeps_what_was_asked() -> None:
    assert steps("/steps?trainer=x y", None, until=5.0)["Back to now"] == "/steps?trainer=x+y"
    assert steps("/steps", None, until=5.0)["Back to now"] == "/steps"


def test_a_list_leads_on_and_back_page_by_page() -> None:
    link, seen = "/steps?trainer=t", []
    for after in ("90", "80", "70"):
        seen.append(link)
        link = steps(link, after)["Older"]
    assert "after=70" in link
    for before in reversed(seen):
        link = steps(link, "60")["Newer"]
        assert dict(parse_qsl(urlsplit(link).query)) == dict(parse_qsl(urlsplit(before).query))
    assert "Newer" not in steps(link, "90")


def test_the_way_back_is_bounded() -> None:
    link = "/steps"
    for after in range(100, 0, -1):
        link = steps(link, str(10**18 + after))["Older"]
    assert len(link) < 1000
    assert steps(link, None)["Newest"] == "/steps"


def test_no_link_of_a_list_is_longer_than_what_is_answered() -> None:
    link = f"/samples?text={'%C3%A9' * 300}"
    for after in range(100, 0, -1):
        here = frame(link)
        link = here.older(f"{10**18 + after}-{'x' * 40}")
        assert len(urlsplit(link).query) <= MAX_QUERY
    back = dict(parse_qsl(urlsplit(link).query))["back"].split(".")
    assert back == [f"{10**18 + after}-{'x' * 40}" for after in range(1 + len(back), 1, -1)], "the last pages are kept"
