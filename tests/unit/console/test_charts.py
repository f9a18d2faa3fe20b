import math
from xml.etree import ElementTree as ET

from trinity_bus.console.web.charts import (
    MAX_POINTS,
    Bar,
    Line,
    histogram,
    lines,
    marks,
    thinned,
    ticks,
)

ATTACK = '"/><script>alert(1)</script>'


def parsed(svg: object) -> ET.Element:
    root = ET.fromstring(str(svg))  # noqa: S314 - made by what is tested
    assert not [element for element in root.iter() if "script" in element.tag or "style" in element.attrib]
    return root


def test_a_long_run_has_no_more_points_than_are_seen() -> None:
    svg = lines("reward", [Line("train", [(float(step), math.sin(step)) for step in range(100_000)])])
    assert len(list(parsed(svg).iter("circle"))) == MAX_POINTS
    assert len(svg) < 60_000


def test_what_is_no_number_is_passed_over() -> None:
    svg = lines("loss", [Line("loss", [(1, math.nan), (2, math.inf), (3, 1.0), (4, -math.inf)])])
    assert len(list(parsed(svg).iter("circle"))) == 1
    assert "nothing yet" in lines("loss", [Line("loss", [(1, math.nan)])])
    assert "nothing yet" in lines("loss", [])


def test_names_are_text() -> None:
    for svg in (
        lines(ATTACK, [Line(ATTACK, [(1, 1), (2, 2)]), Line("b", [(1, 2)])]),
        histogram(ATTACK, [Bar(0, 1, 3, "/samples?a=1&b=2"), Bar(1, 2, 0, "/")]),
        marks(ATTACK, [(ATTACK, [(1, ATTACK)])]),
    ):
        parsed(svg)
        assert "<script" not in svg


def test_a_bar_leads_to_what_it_counts() -> None:
    root = parsed(histogram("rewards", [Bar(0, 0.5, 3, "/samples?low=0&high=0.5"), Bar(0.5, 1, 1, "/b")]))
    # Links in what is a picture could not be followed by who cannot see it.
    assert root.get("role") == "group"
    assert [one.attrib["href"] for one in root.iter("a")] == ["/samples?low=0&high=0.5", "/b"]


def test_one_value_and_huge_values_have_axes() -> None:
    assert ticks(3, 3) == [3]
    assert ticks(-1e300, 1e300)
    for value in (0.0, 1e-300, -5.0, 1e300):
        parsed(lines("x", [Line("x", [(1, value)])]))


def test_an_axis_of_tiny_values_has_ticks_of_its_own() -> None:
    assert len(set(ticks(0.0, 3e-15))) > 2


def test_thinning_keeps_the_mean() -> None:
    points = [(float(i), float(i % 2)) for i in range(10_000)]
    few = thinned(points, most=100)
    assert len(few) == 100
    assert sum(y for _, y in few) / 100 == 0.5
