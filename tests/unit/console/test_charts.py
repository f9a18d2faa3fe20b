import math
import re
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree as ET

import pytest

from trinity_bus.console.index.terms import Bin, Histogram, RowPage
from trinity_bus.console.web.render import MAX_POINTS, Axis, Frame, Pages, chart, thinned
from trinity_bus.console.web.who import Visitor

ATTACK = '"/><script>alert(1)</script>'


def drawn(macro: str, *values: object) -> ET.Element:
    template = Pages()._environment.get_template("charts.html")
    svg = getattr(template.make_module({"frame": frame("/")}), macro)(*values)
    root = ET.fromstring(f"<main>{svg}</main>")  # noqa: S314 - made by what is tested
    assert not [element for element in root.iter() if "script" in element.tag or "style" in element.attrib]
    return root


def circles(points: list[tuple[float, float]]) -> int:
    return len(list(drawn("lines", chart("loss", [("loss", points)])).iter("circle")))


def test_a_chart_has_no_more_points_than_are_seen_and_none_that_is_no_number() -> None:
    assert circles([(float(step), math.sin(step)) for step in range(100_000)]) == MAX_POINTS
    few = thinned([(float(i), float(i % 2)) for i in range(10_000)], most=100)
    assert (len(few), sum(y for _, y in few) / 100) == (100, 0.5)
    assert circles([(1, math.nan), (2, math.inf), (3, 1.0), (4, -math.inf)]) == 1
    for lines in ([("loss", [(1, math.nan)])], []):
        assert "nothing yet" in "".join(drawn("lines", chart("loss", lines)).itertext())


@pytest.mark.parametrize(
    ("macro", "values"),
    [
        ("lines", [chart(ATTACK, [(ATTACK, [(1, 1), (2, 2)]), ("b", [(1, 2)])])]),
        ("timeline", [ATTACK, [(ATTACK, [(1, ATTACK)])]]),
        ("rewards", [Histogram([Bin(0, 1, 3)], 3, 0, newest_only=False), {"task": ATTACK}]),
    ],
)
def test_names_are_text(macro: str, values: list[object]) -> None:
    assert drawn(macro, *values).find(".//svg") is not None


def test_a_bar_leads_to_what_it_counts() -> None:
    found = Histogram([Bin(0.0, 0.5, 3), Bin(0.5, 1.0, 1)], samples=4, without_reward=0, newest_only=False)
    root = drawn("rewards", found, {"step": 3})
    # Links in what is a picture could not be followed by who cannot see it.
    assert [svg.get("role") for svg in root.iter("svg")] == ["group"]
    below = math.nextafter(0.5, 0)
    assert [one.attrib["href"] for one in root.iter("a")] == [
        f"/samples?low=0.0&high={below}&step=3",
        "/samples?low=0.5&high=1.0&step=3",
    ]


@pytest.mark.parametrize("value", [0.0, 1e-300, -5.0, 1e300])
def test_one_value_and_huge_values_have_axes(value: float) -> None:
    assert circles([(1, value)]) == 1


def test_ticks_are_round_numbers_of_the_range() -> None:
    assert Axis(3, 3, 0, 1).ticks(4) == [3]
    assert Axis(-1e300, 1e300, 0, 1).ticks(4)
    assert len(set(Axis(0.0, 3e-15, 0, 1).ticks(4))) > 2


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


def test_links_of_a_list_keep_what_was_asked_and_lead_on() -> None:
    links = steps("/steps?run=a&run=b&metric=x y", None, until=5.0)
    assert links["Back to now"] == "/steps?run=a&run=b&metric=x+y"
    assert steps("/steps", None, until=5.0)["Back to now"] == "/steps"
    links = steps("/steps?trainer=t&after=90", "80")
    assert links["Older"] == "/steps?trainer=t&after=80"
    assert links["Newest"] == "/steps?trainer=t"
    assert "Newest" not in steps("/steps", "80")
    assert "Older" not in steps("/steps?after=80", None)
