"""The names of the contract: all can be had, and none costs who does not ask for it."""

import subprocess
import sys

import pytest

import schemas


def test_every_name_is_there() -> None:
    for name in schemas.__all__:
        assert getattr(schemas, name).__name__ == name
    assert set(schemas.__all__) <= set(dir(schemas))


def test_a_name_that_there_is_not_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Tasks'"):
        _ = schemas.Tasks  # type: ignore[attr-defined]


def test_an_error_does_not_load_what_records_are_made_of() -> None:
    program = "import sys, trinity_bus.errors; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "schemas.errors" in loaded
    assert [name for name in ("numpy", "pydantic", "msgspec") if name in loaded] == []
