import numpy as np
import pytest

from schemas import ExperienceGroup, Task, codec
from tests.unit.schemas.make_golden import GOLDEN, written

WRITTEN = written()


@pytest.mark.parametrize("name", WRITTEN)
def test_golden_records_decode(name: str) -> None:
    value, record = (GOLDEN / name).read_bytes(), WRITTEN[name]
    back = codec.decode(value, type(record))
    if not isinstance(record, ExperienceGroup):
        assert back == record
        return
    for field in ExperienceGroup.__struct_fields__:
        np.testing.assert_equal(getattr(back, field), getattr(record, field))
    assert codec.encode(record) == value, "what was not there then costs nothing now"


def test_every_type_has_its_golden_record_and_a_json_task_decodes() -> None:
    assert {type(record) for record in WRITTEN.values()} == set(codec.RECORDS)
    assert codec.decode((GOLDEN / "task.v1.json").read_bytes(), Task).data == {"level": 3}
