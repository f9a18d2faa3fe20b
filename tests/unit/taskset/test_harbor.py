"""Folders of Harbor tasks as task sets, and names of tasks that lead elsewhere."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.taskset.test_dataset import described, trained
from workers.taskset.description import DatasetError
from workers.taskset.harbor import task_folder

SET = '[[train]]\npath = "bench"\n'


def write(folder: Path, config: str = "", instruction: str = "Do it.") -> None:
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(config)
    (folder / "instruction.md").write_text(instruction)


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    for level, name in ((2, "ada"), (1, "bob")):
        write(tmp_path / "bench" / name, f"[metadata]\nlevel = {level}\n", f"Ask {name}.")
    (tmp_path / "bench" / "README.md").touch()
    (tmp_path / "bench" / "empty").mkdir()
    return tmp_path / "bench"


def test_a_task_names_its_folder_and_carries_nothing_of_it(bench: Path) -> None:
    train = trained(described(bench.parent, SET + "repeat_times = 2\n", order="sequential"))
    first, second = (train.task("t", place) for place in range(2))
    assert (first.task_id, first.workflow, first.data) == ("t/0/ada", "harbor", {"harbor": "bench/ada"})
    assert (first.prompt, first.messages, first.repeat_times, second.task_id) == (None, None, 2, "t/0/bob")
    assert task_folder(bench.parent, first.data["harbor"]) == bench / "ada"
    one = trained(described(bench.parent, '[[train]]\npath = "bench/ada"\n'))
    assert (one.size, one.task("t", 0).data) == (1, {"harbor": "bench/ada"})


def test_instruction_and_config_are_columns_for_templates_and_orders(bench: Path) -> None:
    text = SET + 'workflow = "own"\nprompt = "${instruction}"\ndata = ["harbor"]\ndifficulty = "metadata.level"\n'
    first = trained(described(bench.parent, text, order="easy_to_hard")).task("t", 0)
    assert first.messages is not None
    assert (first.workflow, first.messages[0].content, first.data) == ("own", "Ask bob.", {"harbor": "bench/bob"})


def test_another_instruction_is_another_set(bench: Path) -> None:
    before = trained(described(bench.parent, SET)).fingerprint
    assert trained(described(bench.parent, SET)).fingerprint == before
    (bench / "ada" / "instruction.md").write_text("Ask nobody.")
    assert trained(described(bench.parent, SET)).fingerprint != before


@pytest.mark.parametrize(
    "name",
    ["../ada", "bench/../../ada", "/etc", "bench/link", "bench/none", "", "a\0b", "a" * 5000, None, 7, ["bench"]],
)
def test_a_name_leads_to_no_folder_but_that_of_a_task_below_the_root(bench: Path, name: Any) -> None:
    write(bench.parent.parent / f"{bench.parent.name}-ada")
    (bench / "link").symlink_to(bench.parent.parent / f"{bench.parent.name}-ada")
    with pytest.raises(DatasetError, match="is no Harbor task below"):
        task_folder(bench.parent, name)


def test_what_leads_out_of_the_folder_of_the_description_is_no_set(bench: Path, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    for path in ("../bench", str(bench)):
        with pytest.raises(DatasetError, match="is no Harbor task below"):
            described(tmp_path / "sets", f'[[train]]\npath = "{path}"\n')
    (tmp_path / "secret").write_text("the key")
    (bench / "ada" / "instruction.md").unlink()
    (bench / "ada" / "instruction.md").symlink_to(tmp_path / "secret")
    with pytest.raises(DatasetError, match=r"bench/ada: .* it is a link"):
        described(tmp_path, SET)


def test_a_bad_config_is_named_with_its_folder(bench: Path) -> None:
    (bench / "bob" / "task.toml").write_text("level = ")
    with pytest.raises(DatasetError, match=r"bench/bob: this is not TOML"):
        described(bench.parent, SET)
