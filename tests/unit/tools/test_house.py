from dataclasses import replace
from pathlib import Path

import pytest

from tools import house
from tools.house import Size, faults, rooms, size

SIZES = {"schemas": Size(120, 3, 1, 10.0, 3), "trinity_bus/bus": Size(340, 5, 0, 16.0, 4)}
TOTAL = Size(460, 8, 1, 14.4, 4)
BUDGETS = {
    "rooms": {"schemas": 150, "trinity_bus/bus": 340},
    "total": {"lines": 500, "modules": 8, "small": 1, "docstrings": 15, "folder": 4},
}


def test_the_table_has_a_row_for_each_room_and_the_total() -> None:
    rows = house.table(SIZES, TOTAL, BUDGETS).splitlines()
    assert [" ".join(row.split()[:3]) for row in rows[1:]] == [
        "schemas 120 150",
        "trinity_bus/bus 340 340",
        "total 460 500",
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"lines": 501}, "the product has 501 lines, and its budget is 500: "),
        ({"modules": 9}, "the product has 9 modules, and its budget is 8: "),
        ({"small": 2}, "the product has 2 modules under 40 lines, and its budget is 1: "),
        ({"docstrings": 15.04}, "the product has 15.04 percent of docstrings, and its budget is 15: "),
        ({"folder": 5}, "the product has 5 modules in one folder, and its budget is 4: "),
    ],
)
def test_a_total_above_its_budget_is_named(change: dict[str, float], expected: str | None) -> None:
    found = list(faults(SIZES, replace(TOTAL, **change), BUDGETS))  # type: ignore[arg-type]
    assert [fault[: len(expected or "")] for fault in found] == ([] if expected is None else [expected])


def test_a_room_is_named_with_what_to_do() -> None:
    larger = SIZES | {"trinity_bus/bus": replace(SIZES["trinity_bus/bus"], lines=341)}
    assert list(faults(larger, TOTAL, BUDGETS)) == [
        (
            "trinity_bus/bus has 341 lines, and its budget is 340: "
            "replace something, or raise the budget in pyproject.toml with the reason in the commit"
        )
    ]
    moved = {"schemas": SIZES["schemas"], "trinity_bus/log": SIZES["trinity_bus/bus"]}
    assert list(faults(moved, TOTAL, BUDGETS)) == [
        "trinity_bus/log has 340 lines and no budget: give it one in pyproject.toml",
        "trinity_bus/bus has a budget and no modules: remove the budget from pyproject.toml",
    ]


def test_rooms_are_packages_and_are_measured(tmp_path: Path) -> None:
    files = {
        "schemas/codec/text.py": "A = 1\n",
        "trinity_bus/__init__.py": "",
        "trinity_bus/bus/__init__.py": '"""A\n\nb."""\n',
        "trinity_bus/bus/read/one.py": "x = 1\n" * 40,
        "trinity_bus/bus/read/two.py": 'class A:\n    b: int = 1\n    """Of it."""\n',
        "workers/up.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = rooms(tmp_path)
    assert list(found) == ["schemas", "trinity_bus", "trinity_bus/bus", "workers"]
    assert size(found["trinity_bus/bus"]) == Size(46, 3, 1, 100 * 4 / 46, 2)
