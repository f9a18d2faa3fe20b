"""The wire format as another language sees it: msgpack, and numbers in little-endian order."""

import subprocess
import sys

import schemas
from schemas import ExperienceGroup, Task
from schemas.codec import decode, encode
from tests.unit.schemas.record_strategies import small_group

READ_EXPERIENCE = """
import sys
from array import array
import msgpack

header, binary = msgpack.unpackb(sys.stdin.buffer.read())
assert (header["schema"], header["schema_version"]) == ("experience", 1)
types = {"<i4": "i", "<f4": "f", "|u1": "B"}
columns = {}
for name, (dtype, shape, offset, nbytes) in header["buffers"].items():
    column = array(types[dtype])
    column.frombytes(binary[offset : offset + nbytes])
    if sys.byteorder == "big":
        column.byteswap()
    columns[name] = column.tolist()
bits = "".join(f"{byte:08b}" for byte in columns["mask_bits"])
token = response = 0
for i, (length, prompt) in enumerate(zip(columns["lengths"], columns["prompt_lengths"])):
    n = length - prompt
    print(header["task_id"], columns["run_ids"][i], columns["rewards"][i], header["metrics"][i]["accuracy"])
    print(columns["tokens"][token : token + length])
    print(columns["logprobs"][response : response + n], bits[response : response + n])
    token, response = token + length, response + n
assert not {"numpy", "pydantic", "msgspec", "schemas"} & set(sys.modules)
"""

WRITE_EXPERIENCE = """
import sys
from array import array
import msgpack

columns = {
    "tokens": ("<i4", array("i", [1, 2, 3, 4, 5])),
    "lengths": ("<i4", array("i", [5])),
    "prompt_lengths": ("<i4", array("i", [2])),
    "logprobs": ("<f4", array("f", [-0.5, -1.0, -1.5])),
    "mask_bits": ("|u1", array("B", [0b10100000])),
    "rewards": ("<f4", array("f", [1.0])),
    "run_ids": ("<i4", array("i", [0])),
    "versions": ("<i4", array("i", [0, 0, 7])),
}
table, binary = {}, b""
for name, (dtype, column) in columns.items():
    raw = column.tobytes()
    shape = [len(column) // 3, 3] if name == "versions" else [len(column)]
    table[name] = [dtype, shape, len(binary), len(raw)]
    binary += raw + bytes(-len(raw) % 8)
header = {
    "schema": "experience", "schema_version": 1, "task_id": "t", "attempt": 1, "batch_id": "b", "batch_type": "train",
    "workflow": "math", "model": "policy", "explorer": "mine", "incarnation": "1", "buffers": table,
}
sys.stdout.buffer.write(msgpack.packb([header, binary]))
"""


def run(script: str, stdin: bytes = b"") -> bytes:
    return subprocess.run([sys.executable, "-c", script], input=stdin, capture_output=True, check=True).stdout


def test_an_experience_is_read_with_msgpack_alone() -> None:
    lines = run(READ_EXPERIENCE, encode(small_group())).decode().splitlines()
    assert lines == [
        "task-1 0 0.0 0.0",
        "[1, 2, 3, 0, 1, 2, 3, 4]",
        "[0.0, -0.25, -0.5, -0.75, -1.0] 10101",
        "task-1 1 1.0 1.0",
        "[1, 2, 3, 10, 11, 12, 13, 14]",
        "[0.0, -0.25, -0.5, -0.75, -1.0] 11111",
    ]


def test_an_experience_is_written_with_msgpack_alone() -> None:
    (sample,) = decode(run(WRITE_EXPERIENCE), ExperienceGroup).samples()
    assert sample.tokens.tolist() == [1, 2, 3, 4, 5]
    assert sample.logprobs.tolist() == [-0.5, -1.0, -1.5]
    assert sample.mask.tolist() == [True, False, True]
    assert (sample.version_min, sample.version_max) == (7, 7)


def test_a_task_is_written_with_msgpack_alone() -> None:
    script = """
import sys, msgpack
task = {"schema": "task", "schema_version": 1, "task_id": "t", "workflow": "math", "prompt": "1+1", "repeat_times": 4}
sys.stdout.buffer.write(msgpack.packb(task))
"""
    assert decode(run(script), Task).repeat_times == 4


def test_the_schemas_import_nothing_heavy() -> None:
    heavy = "{'torch', 'vllm', 'megatron', 'transformers', 'aiokafka', 'opentelemetry', 'trinity_bus', 'yaml'}"
    run(f"import sys, schemas, schemas.codec, schemas.topics; assert not {heavy} & set(sys.modules)")


def test_every_name_is_there() -> None:
    for name in schemas.__all__:
        assert getattr(schemas, name).__name__ == name
    assert set(schemas.__all__) <= set(dir(schemas))


def test_an_error_does_not_load_what_records_are_made_of() -> None:
    program = "import sys, trinity_bus.errors; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "schemas.errors" in loaded
    assert [name for name in ("numpy", "pydantic", "msgspec") if name in loaded] == []
