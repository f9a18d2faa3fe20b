import os
from pathlib import Path

import pytest

from trinity_bus.runtime.plain_files import NotPlainError, append_plain


def test_a_pipe_in_the_place_of_a_log_is_refused_whether_or_not_somebody_reads_it(tmp_path: Path) -> None:
    pipe = tmp_path / "kafka.log"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"kafka\.log"):
        append_plain(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(NotPlainError, match="no regular file"):
            append_plain(pipe)
    finally:
        os.close(reader)


def test_a_file_is_made_and_appended_to(tmp_path: Path) -> None:
    for _ in range(2):
        with append_plain(tmp_path / "log") as file:
            file.write(b"a")
    assert (tmp_path / "log").read_bytes() == b"aa"
