"""Writes ``golden/``: one encoded record of every type, as version 1 of this project wrote it.

``golden_records.json`` has the fields of the record in each file; what is bytes stands there as ``{"hex": ...}``. The
files are history: run this for a type or a shape that has none yet, never to make a failing test pass.
"""

import json
from pathlib import Path
from typing import Any

from schemas import ExperienceGroup, Record
from schemas.codec import RECORDS, encode
from tests.unit.schemas.record_strategies import full_group, small_group

GOLDEN = Path(__file__).parent / "golden"


def _with_bytes(fields: dict[str, Any]) -> Any:
    return bytes.fromhex(fields["hex"]) if fields.keys() == {"hex"} else fields


def written() -> dict[str, Record | ExperienceGroup]:
    """Return the record in each file, by the file's name."""
    known: dict[str, Any] = {cls.SCHEMA: cls for cls in RECORDS}
    told = json.loads((Path(__file__).with_name("golden_records.json")).read_text(), object_hook=_with_bytes)
    records = {name: known[fields["schema"]].model_validate(fields) for name, fields in told.items()}
    groups = {
        "experience.v1.msgpack": small_group(),
        "experience.v1.full.msgpack": full_group(kept=False),
        "experience.v1.kept.msgpack": full_group(),
    }
    return {**groups, **records}


def main() -> None:
    """Write the files that are missing."""
    for name, record in written().items():
        path = GOLDEN / name
        if not path.exists():
            path.write_bytes(encode(record))


if __name__ == "__main__":
    main()
