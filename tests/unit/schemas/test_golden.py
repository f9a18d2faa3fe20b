"""Bytes that an earlier version wrote still mean what they meant."""

import numpy as np
import pytest

from schemas import ExperienceGroup, Record, Task, codec
from tests.unit.schemas.make_golden import GOLDEN, NEWER, RECORDS


def read(name: str, written: Record | ExperienceGroup) -> None:
    value = (GOLDEN / name).read_bytes()
    back = codec.decode(value, type(written))
    if not isinstance(written, ExperienceGroup):
        assert back == written
        return
    for field in ExperienceGroup.__struct_fields__:
        np.testing.assert_equal(getattr(back, field), getattr(written, field))
    assert codec.encode(written) == value, "what was not there then costs nothing now"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.SCHEMA)
def test_golden_records_decode(record: Record | ExperienceGroup) -> None:
    read(f"{record.SCHEMA}.v{record.VERSION}.msgpack", record)


@pytest.mark.parametrize("name", NEWER)
def test_golden_records_of_later_shapes_decode(name: str) -> None:
    read(name, NEWER[name])


def test_every_type_has_its_golden_record() -> None:
    assert {type(record) for record in RECORDS} == set(codec.RECORDS)


def test_a_json_task_decodes() -> None:
    assert codec.decode((GOLDEN / "task.v1.json").read_bytes(), Task).data == {"level": 3}
