import io

import pyarrow as pa
import pytest
from pyarrow import parquet

from workers.taskset.rows import RowError, RowReader


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
