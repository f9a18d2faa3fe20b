import codecs
import datetime
import gzip
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from schemas import Task
from tests.support.narrowing import some
from workers.taskset.dataset import load
from workers.taskset.description import DatasetError
from workers.taskset.reading import _text
from workers.taskset.rows import RowError, RowReader

MATH = 'workflow = "math"\nprompt = "${question}"\nanswer = "${answer}"\n'


def tasks(folder: Path, name: str, more: str = MATH, **options: Any) -> list[Task]:
    (folder / "set.toml").write_text(f'[[train]]\npath = "{name}"\n{more}')
    train = some(load(folder / "set.toml", order="sequential", **options).train)
    return [train.task("t", place) for place in range(train.size or 0)]


def write(folder: Path, kind: str, rows: pa.Table) -> str:
    if kind == "parquet":
        parquet.write_table(rows, folder / "a.parquet")
    else:
        opened = pa.ipc.new_stream if kind == "stream.arrow" else pa.ipc.new_file
        with opened(folder / f"a.{kind}", rows.schema) as writer:
            writer.write_table(rows)
    return f"a.{kind}"


COLUMNAR = pytest.mark.parametrize("kind", ["parquet", "stream.arrow", "file.arrow"])


TEXTS: list[tuple[pa.Array, str]] = [
    (pa.array([42.0]), "42"),
    (pa.array([1e16]), "10000000000000000"),
    (pa.array([0.00001]), "0.00001"),
    (pa.array([-2.5e-7]), "-0.00000025"),
    (pa.array([0.1], pa.float32()), "0.1"),
    (pa.array([0.1], pa.float16()), "0.1"),
    (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
    (pa.array([Decimal("0.0000001")], pa.decimal128(20, 7)), "0.0000001"),
    (pa.array([Decimal("12.50")], pa.decimal128(20, 2)), "12.50"),
    (pa.array([True]), "true"),
    (pa.array(["a"], pa.large_string()), "a"),
    (pa.array(["a"]).dictionary_encode(), "a"),
    (pa.array([0.1], pa.float32()).dictionary_encode(), "0.1"),
    (pa.array([datetime.date(2024, 2, 3)]), "2024-02-03"),
    (pa.array([1], pa.timestamp("ns")), "1970-01-01 00:00:00.000000001"),
    (pa.array([1], pa.time64("us")), "00:00:00.000001"),
    (pa.array([1_500], pa.duration("ns")), "0:00:00.000001"),
    (pa.array([86_400 * 10**9], pa.timestamp("ns")), "1970-01-02 00:00:00"),
    (pa.array([1_500], pa.timestamp("ms", "UTC")), "1970-01-01 00:00:01.5Z"),
    (pa.array([50], pa.time32("ms")), "00:00:00.05"),
    (pa.array([None, datetime.time(3, 4)]).slice(1), "03:04:00"),
]


@COLUMNAR
def test_a_column_is_written_as_an_answer_can_have_it(tmp_path: Path, kind: str) -> None:
    columns = {f"c{place}": column for place, (column, _) in enumerate(TEXTS)}
    name = write(tmp_path, kind, pa.table(columns))
    answer = "|".join(f"${column}" for column in columns)
    (task,) = tasks(tmp_path, name, f'workflow = "math"\nprompt = "a?"\nanswer = "{answer}"\n')
    assert task.answer is not None
    assert task.answer.split("|") == [text for _, text in TEXTS]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("42.0", "42"), ("1e16", "10000000000000000"), ("0.00001", "0.00001"),
        ("1180591620717411303424", "1180591620717411303424"), ("false", "false"), ("0", "0"), ('"1e16"', "1e16"),
    ],
)  # fmt: skip
def test_a_number_of_json_likewise(tmp_path: Path, number: str, text: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"question": "a?", "answer": {number}}}\n')
    assert tasks(tmp_path, "a.jsonl")[0].answer == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_number_is_that_number(number: float) -> None:
    text = _text("a", number)
    assert float(text) == number
    assert set(text) <= set("-0123456789.")
    assert "." not in text or float(text) != int(float(text))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([float("nan")]), "column 'answer' is empty"),
        (pa.array([None], pa.string()), "column 'answer' is empty"),
        (pa.array([float("inf")]), "column 'answer' is inf, which is no number"),
        (pa.array([["4", "5"]]), r"column 'answer' is a list of 2, and no text; .* such as \$\{answer\.0\}"),
        (pa.array([[]], pa.list_(pa.string())), "column 'answer' is a list of 0, and no text"),
        (pa.array([{"truth": "4"}]), r"is a structure of 'truth', and no text; .* such as \$\{answer\.truth\}"),
        (pa.array([b"4"]), "column 'answer' is bytes, and no text"),
        (
            pa.array([[{"role": "user", "content": "4"}]]),
            "column 'answer' is a list of 1, and no text; it is a conversation, which messages = 'answer' takes",
        ),
    ],
    ids=range(8),
)
def test_what_has_no_text_is_refused_by_its_name(tmp_path: Path, column: pa.Array, message: str) -> None:
    name = write(tmp_path, "parquet", pa.table({"question": ["a?"], "answer": column}))
    with pytest.raises(DatasetError, match=rf"a\.parquet:1: .*{message}"):
        tasks(tmp_path, name)


VERL = {
    "data_source": "gsm8k",
    "prompt": [{"role": "user", "content": "6 times 7?"}],
    "reward_model": {"style": "rule", "ground_truth": "42"},
    "extra_info": {"index": 3, "tags": ["a", "b"]},
}
FLOATS = pa.struct({"a": pa.list_(pa.float32()), "b": pa.map_(pa.string(), pa.float32())})

FROM_VERL = (
    'workflow = "math"\nmessages = "prompt"\nanswer = "${reward_model.ground_truth}"\nid = "${extra_info.index}"\n'
    'data = ["extra_info.tags.1", "reward_model"]\ndifficulty = "extra_info.index"\n'
)


NANOSECONDS = pa.struct({
    "list": pa.list_(pa.timestamp("ns")),
    "large": pa.large_list(pa.time64("ns")),
    "two": pa.list_(pa.duration("ns"), 2),
    "map": pa.map_(pa.string(), pa.struct({"at": pa.timestamp("ns", "UTC"), "n": pa.int8()})),
})  # fmt: skip


@COLUMNAR
def test_times_within_a_column_may_be_nanoseconds(tmp_path: Path, kind: str) -> None:
    value = {"list": [1, None], "large": [1], "two": [1_500, 2_500], "map": [("a", {"at": 1, "n": 2})]}
    name = write(tmp_path, kind, pa.table({"a": pa.array([value, value], NANOSECONDS), "q": ["a?", "b?"]}))
    _, task = tasks(tmp_path, name, 'workflow = "w"\nprompt = "${q}"\ndata = ["a"]\n')
    assert task.data["a"] == {
        "list": ["1970-01-01 00:00:00.000000001", None],
        "large": ["00:00:00.000000001"],
        "two": ["0:00:00.000001", "0:00:00.000002"],
        "map": {"a": {"at": "1970-01-01 00:00:00.000000001Z", "n": 2}},
    }


SHARED = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "6 times 7?"},
    {"from": "function_call", "value": '{"name": "mul", "arguments": {"a": 6, "b": 7}}'},
    {"from": "observation", "value": "42"},
    {"from": "gpt", "value": "It is 42."},
]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "text"])
def test_a_conversation_may_be_sharegpts_or_json_text_and_what_answers_it_is_no_part_of_it(
    tmp_path: Path, kind: str
) -> None:
    rows = [{"conversations": json.dumps(SHARED) if kind == "text" else SHARED}]
    name = "a.jsonl"
    (tmp_path / name).write_text(json.dumps(rows[0]) + "\n")
    if kind == "parquet":
        name = write(tmp_path, kind, pa.Table.from_pylist(rows))
    more = 'workflow = "w"\nmessages = "conversations"\nanswer = "${conversations.-1.value}"\n'
    (task,) = tasks(tmp_path, name, more)
    messages = some(task.messages)
    assert [(one.role, one.content) for one in messages] == [
        ("system", "Be brief."),
        ("user", "6 times 7?"),
        ("assistant", None),
        ("tool", "42"),
    ]
    (call,) = some(messages[2].tool_calls)
    assert (call.function.name, json.loads(call.function.arguments)) == ("mul", {"a": 6, "b": 7})
    assert messages[3].tool_call_id == call.id
    assert task.answer == "It is 42."


@pytest.mark.parametrize("written", ["[", '"so"', json.dumps([{"from": "function_call", "value": "{"}]), "[" * 100_000])
def test_text_that_is_no_conversation_is_told_with_its_row(tmp_path: Path, written: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"m": written}) + "\n")
    with pytest.raises(DatasetError, match=r"a\.jsonl:1: column 'm' is no list of messages"):
        tasks(tmp_path, "a.jsonl", 'workflow = "w"\nmessages = "m"\n')


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"question": "a?", "answer": "4"}\n')
    (tmp_path / "sets").mkdir()
    assert [task.answer for task in tasks(tmp_path / "sets", "~/data/*.jsonl")] == ["4"]


@pytest.mark.parametrize("kind", ["parquet", "stream.arrow", "file.arrow", "jsonl"])
def test_parts_of_columns_are_taken_by_their_paths(tmp_path: Path, kind: str) -> None:
    name = "a.jsonl"
    (tmp_path / name).write_text(json.dumps(VERL) + "\n")
    if kind != "jsonl":
        name = write(tmp_path, kind, pa.Table.from_pylist([VERL]))
    (task,) = tasks(tmp_path, name, FROM_VERL)
    assert task.messages is not None
    assert [(one.role, one.content) for one in task.messages] == [("user", "6 times 7?")]
    assert (task.task_id, task.answer) == ("t/0/3", "42")
    assert task.data == {"extra_info.tags.1": "b", "reward_model": VERL["reward_model"]}


def test_a_conversation_may_be_json_in_a_text(tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist([{**VERL, "prompt": json.dumps(VERL["prompt"])}]), tmp_path / "a.parquet")
    (task,) = tasks(tmp_path, "a.parquet", FROM_VERL)
    assert [(one.role, one.content) for one in task.messages or ()] == [("user", "6 times 7?")]


def test_a_time_that_is_too_long_is_told_and_not_another(tmp_path: Path) -> None:
    name = write(tmp_path, "file.arrow", pa.table({"q": ["a?"], "t": pa.array([10**14], pa.duration("s"))}))
    with pytest.raises(DatasetError, match=r"a\.file\.arrow:1: .*it cannot be read: .*days=1157407407"):
        tasks(tmp_path, name, 'workflow = "w"\nprompt = "${q}"\ndata = ["t"]\n')


@COLUMNAR
def test_a_short_number_within_a_column_is_as_long(tmp_path: Path, kind: str) -> None:
    rows = pa.table({"n": pa.array([{"a": [0.1, float("inf")], "b": [("c", -1e-7)]}], FLOATS)})
    more = 'workflow = "math"\nprompt = "${n.a.0} ${n.b.c}"\nanswer = "1"\nchat = false\n'
    assert tasks(tmp_path, write(tmp_path, kind, rows), more)[0].prompt == "0.1 -0.0000001"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('prompt = "${prompt}"\n', "column 'prompt' is a list of 1.*which messages = 'prompt' takes"),
        (
            'prompt = "${reward_model.truth}"\n',
            "'reward_model.truth': there is no 'truth' in a structure of 'style', 'gr",
        ),
        ('prompt = "${extra_info.tags.2}"\n', "'extra_info.tags.2': there is no '2' in a list of 2"),
        ('prompt = "${data_source.x}"\n', "'data_source.x': there is no 'x' in text"),
        ('prompt = "${answers.x}"\n', "there is no column 'answers'; there are 'data_source', 'prompt', 'rew"),
        ('messages = "data_source"\n', "column 'data_source' is no list of messages"),
        ('messages = "reward_model"\nsystem = "a"\n', "column 'reward_model' is no list of messages"),
    ],
)
def test_a_path_that_leads_nowhere_is_told(tmp_path: Path, more: str, message: str) -> None:
    parquet.write_table(pa.Table.from_pylist([VERL]), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=rf"a\.parquet:1: .*{message}"):
        tasks(tmp_path, "a.parquet", f'workflow = "math"\n{more}')


def test_a_column_may_have_a_dot_or_a_blank_in_its_name_or_none_and_a_field_be_long(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a.b": ["q"], "Right Answer": ["4"]}), tmp_path / "a.parquet")
    more = 'workflow = "math"\nprompt = "${a.b}"\nanswer = "${Right Answer}"\n'
    (task,) = tasks(tmp_path, "a.parquet", more)
    assert task.messages is not None
    assert (task.messages[0].content, task.answer) == ("q", "4")
    (tmp_path / "a.csv").write_text(",question,answer,,\n0," + "word " * 40_000 + ",2,,\n")
    (task,) = tasks(tmp_path, "a.csv")
    assert task.messages is not None
    assert task.messages[0].content == "word " * 40_000


ROWS = b'{"question": "a?", "answer": "1"}\n{"question": "b?", "answer": "2"}\n'
TASKS = b'{"task_id": "a", "workflow": "math", "prompt": "a?", "answer": "1"}\n'
CSV = b'\n"question","answer"\na?,1\nb?,2\n'
ARRAY = b'[%s, {"question": "b?",\n "answer": "2"}\n]\n' % ROWS.splitlines()[0]


@pytest.mark.parametrize("content", [ROWS, ROWS.replace(b"\n", b"\r\n")], ids=["LF", "CRLF"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "A.JSONL.GZ", "a.csv.gz", "a.json", "a.json.gz"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_marks_of_byte_order_ends_of_lines_and_packing(tmp_path: Path, content: bytes, name: str, mark: bytes) -> None:
    written = mark + (CSV if "csv" in name else ARRAY if ".json." in f"{name}." else content)
    (tmp_path / name).write_bytes(gzip.compress(written) if name.lower().endswith("gz") else written)
    assert [task.answer for task in tasks(tmp_path, name)] == ["1", "2"]
    if "jsonl" in name.lower():
        (tmp_path / name).write_bytes(gzip.compress(mark + TASKS) if name.lower().endswith("gz") else mark + TASKS)
        assert [task.task_id for task in tasks(tmp_path, name, "")] == ["t/0/a"]


def test_an_array_of_json_has_rows_of_any_length_up_to_the_most(tmp_path: Path) -> None:
    long = [{"question": "a" * size, "answer": size} for size in (1, 1 << 16, 1 << 19)]
    (tmp_path / "a.json").write_text(json.dumps(long))
    assert [task.answer for task in tasks(tmp_path, "a.json")] == ["1", "65536", "524288"]
    (tmp_path / "a.json").write_text(json.dumps([{"question": "a" * (8 << 20)}]))
    with pytest.raises(DatasetError, match=r"a\.json:1: this is no JSON object of at most 8,388,608 bytes"):
        tasks(tmp_path, "a.json")


@pytest.mark.parametrize(
    ("name", "content", "more", "message"),
    [
        ("a.json", ARRAY[:-3], MATH, "a.json:3: this is no JSON object"),
        ("a.json", ARRAY + b"{}", MATH, "a.json:3: this is no JSON object"),
        ("a.json", b'[{"question": 1, "question": 2}]', MATH, "a.json:1: .*the name 'question' is there twice"),
        ("a.json", b"[1]", MATH, "a.json:1: this is no JSON object, but int"),
        ("a.json", b"[]", MATH, "has no task"),
        ("a.csv", b"question,answer,answer\na?,1,2\n", MATH, "a.csv:1: two columns are called 'answer'"),
        ("a.csv", b"question,answer\na?,1\n\xff,2\n", MATH, "a.csv:3: this is no CSV: 'utf-8'"),
        ("a.csv", b"", MATH, "has no task"),
        ("a.csv", "question,answer\na?,1\n".encode("utf-16"), MATH, "a.csv:1: this is UTF-16; save it as UTF-8"),
        ("a.jsonl", ROWS.decode().encode("utf-16"), MATH, "a.jsonl:1: this is UTF-16; save it as UTF-8"),
        (
            "a.jsonl",
            ROWS + b'{"question": 1, "question": 2}\n',
            MATH,
            "a.jsonl:3: .*the name 'question' is there twice",
        ),
        ("a.jsonl", ROWS + b'{"question": "c?", "answer": NaN}\n', MATH, "a.jsonl:3: column 'answer' is empty"),
        ("a.jsonl", ROWS + b'{"question": "c?", "answer": Infinity}\n', MATH, "a.jsonl:3: column 'answer' is inf"),
        ("a.jsonl", ROWS + b'{"question": "\\ud800", "answer": "1"}\n', MATH, "a.jsonl:3: task: messages.*"),
        ("a.jsonl", ROWS + b'{"answer": ' + b"1" * 5000 + b"}\n", MATH, "a.jsonl:3: this is no JSON object: Exceeds"),
        ("a.jsonl", TASKS.replace(b'"a?"', b'"a?", "prompt": "b?"'), "", "a.jsonl:1: .*'prompt' is there twice"),
        ("a.jsonl", b"\x81\xa1a\x01\n", "", "a.jsonl:1: "),
        ("a.jsonl.gz", gzip.compress(ROWS, mtime=0)[:-9], MATH, "a.jsonl.gz: this is no gzip file"),
        ("a.jsonl.gz", ROWS, MATH, "a.jsonl.gz: this is no gzip file"),
        ("a.jsonl.gz", b"", MATH, "has no task"),
        ("a.parquet", b"", MATH, "a.parquet: this is no Parquet file"),
        ("a.arrow", b"", MATH, "a.arrow: this is no Arrow data"),
    ],
)
def test_wrong_text_is_told_with_its_line(tmp_path: Path, name: str, content: bytes, more: str, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        tasks(tmp_path, name, more)


@COLUMNAR
def test_two_columns_of_one_name_are_refused(tmp_path: Path, kind: str) -> None:
    name = write(tmp_path, kind, pa.table([["a?"], ["1"], ["2"]], names=["question", "answer", "answer"]))
    with pytest.raises(DatasetError, match=r"two columns are called 'answer'"):
        tasks(tmp_path, name)


@pytest.mark.parametrize(
    ("pattern", "names", "ids"),
    [
        ("*.csv", ["a.csv", "b.csv", "._a.csv"], ["a", "b"]),
        ("**/*.csv", ["a.csv", "b.csv", ".ipynb_checkpoints/a.csv"], ["a", "b"]),
        (
            "*/train-*.csv",
            ["algebra/train-0.csv", "geometry/train-0.csv"],
            ["algebra/train-0.csv", "geometry/train-0.csv"],
        ),
        ("train-*.csv", ["train-0.csv", "train-1.csv"], ["train-0", "train-1"]),
        ("a.*", ["a.csv", "a.csv.gz"], ["a", "a.csv"]),
        ("*/*.csv", ["a b/x.csv", "ä/x.csv"], ["a-b/x.csv", "part"]),
        ("*/*.csv", ["a b/x.csv", "a-b/x.csv"], ["part-0", "part-1"]),
        ("*/*.csv", ["x" * 160 + "/x.csv", "y/x.csv"], ["part-0", "part-1"]),
    ],
)
def test_files_called_alike_have_own_ids(tmp_path: Path, pattern: str, names: list[str], ids: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(CSV) if name.endswith("gz") else CSV)
    found = [task.task_id for task in tasks(tmp_path, pattern)]
    assert len({*found}) == 4
    if "part" not in ids:
        assert found == [f"t/0/{one}/{line}" for one in ids for line in (3, 4)]


def test_an_order_goes_by_numbers_and_not_by_what_is_missing(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"question": ["a", "b"], "level": [1.0, np.nan]}), tmp_path / "a.parquet")
    more = 'workflow = "math"\nprompt = "${question}"\ndifficulty = "level"\n'
    with pytest.raises(DatasetError, match=r"a\.parquet:2: there is no difficulty: column 'level' is empty"):
        tasks(tmp_path, "a.parquet", more)


@pytest.mark.timeout(60)
def test_rows_without_columns_are_refused_however_many_there_are() -> None:
    array = pa.StructArray.from_buffers(pa.struct([]), 1 << 45, [None])
    batch, stream, file = pa.RecordBatch.from_struct_array(array), io.BytesIO(), io.BytesIO()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    empty = io.BytesIO()
    parquet.write_table(pa.table({}), empty)
    with RowReader() as reader:
        for name, content in (("a.arrow", stream), ("b.arrow", file), ("c.parquet", empty)):
            with pytest.raises(RowError, match="no columns"):
                list(reader.rows(name, content.getvalue()))


@pytest.mark.timeout(60)
def test_a_csv_of_very_many_columns_is_read() -> None:
    names = [f"{number:x}" for number in range(200_000)]
    with RowReader() as reader:
        ((_, row),) = reader.rows("a.csv", (",".join(names) + "\n" + "," * (len(names) - 1) + "\n").encode())
        assert len(row) == len(names)
        with pytest.raises(RowError, match="two columns are called '1f'"):
            list(reader.rows("a.csv", (",".join([*names, "1f"]) + "\n").encode()))
