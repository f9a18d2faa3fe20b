import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings

from tests.support.console.answers import ANSWERS, CHECKS, SHAPE, SOUND, random_answers, shape_of
from tests.support.narrowing import some
from trinity_bus.config import (
    CONFIG_VARIABLE,
    Settings,
    setting_fields,
)
from trinity_bus.config.sections import Sections, is_secret
from trinity_bus.console.index.terms import SettingsRow
from trinity_bus.sizing.hardware import Hardware
from trinity_bus.sizing.memory import GIB, HostMemory, host_memory
from workers.console.draft import (
    EXTRA_FIELDS,
    QUESTIONS,
    BadAnswerError,
    Checked,
    Checks,
    TaskRows,
    draft_of,
    fields,
    mesh_file,
    tasks_file,
)
from workers.console.index_pages import ComparedSetting, compared_settings
from workers.local import planned
from workers.preconditions import problems, refusals
from workers.taskset.description import describe


def checked(answers: Mapping[str, str], **more: str) -> Checked:
    return CHECKS(draft_of({**answers, **{name.replace("__", "."): text for name, text in more.items()}}), lay_out=True)


def test_there_is_a_field_for_each_setting_and_it_says_what_the_setting_says() -> None:
    assert list(fields()) == list(setting_fields())
    for path, info in setting_fields().items():
        one = fields()[path]
        assert one.meaning == " ".join((info.description or "").split())
        assert one.is_secret == is_secret(info)
        default = info.get_default(call_default_factory=True, validated_data={})
        if one.default:
            assert str(one.value(one.default)) == str(default), path
    assert fields()["mesh.mode"].choices == ["both", "explore", "train", "bench", "serve"]
    assert fields()["explorer.gpu_memory_utilization"].bounds == "above 0 to 1"
    assert {*QUESTIONS} <= {*fields(), *EXTRA_FIELDS}


def test_what_is_not_answered_is_named() -> None:
    found = checked({})
    assert {"mesh.model_path", "trainer.checkpoint_dir"} <= set(found.unfinished)
    assert not found.is_sound
    assert checked(SOUND).is_sound
    assert checked(SOUND).unfinished == []
    rows = checked(SOUND, rows__prompt="question")
    assert set(rows.unfinished) == {"rows.path", "rows.workflow"}


@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        ("coordinator.batch_size", "many", "integer"),
        ("coordinator.batch_size", "0", "greater than or equal to 1"),
        ("mesh.mode", "all", "'both'"),
        ("mesh.max_tokens", "2000", "leaves no room for prompts"),
        ("mesh.max_model_len", "50000", "takes 40,960"),
        ("mesh.model_path", "/models/none", "does not exist"),
        ("synchronizer.trainer_sync_interval", "4", "coordinator.max_staleness to 3"),
        ("trainer.loss", "pp", "pp"),
        ("trainer.publish", "staged", ""),
        ("trainer.tensor_parallel", "3", "does not divide"),
        ("trainer.stages", "[{", "valid list"),
        ("taskset.path", "nowhere.jsonl", "no such file"),
        ("rows.path", "nowhere.jsonl", ""),
        ("hardware.gpu_gib", "-1", "above 0"),
        ("hardware.trainer_gpus", "1.5", "from 0 to 64"),
    ],
)
def test_each_answer_is_checked_as_the_services_would(path: str, text: str, told: str) -> None:
    more = {"synchronizer.sync_method": "checkpoint"} if path == "trainer.publish" else {}
    if path == "rows.path":
        more = {"rows.prompt": "q", "rows.workflow": "math"}
    found = checked({**SOUND, **more, path: text})
    assert told in found.of(path)
    assert found.of(path)
    assert not found.is_sound


def test_what_fits_neither_gpus_nor_memory_is_told_with_what_it_is_made_of() -> None:
    one = {"hardware.trainer_gpus": "1", "hardware.explorer_gpus": "1"}
    assert checked({**SOUND, **one}).is_sound
    found = checked({**SOUND, **one}, hardware__gpu_gib="6")
    assert "each GPU of the trainer needs about" in found.of("hardware.gpu_gib")
    assert not some(found.trainer).fits

    def memory(services: Sequence[str], settings: Sections) -> HostMemory:
        return host_memory(services, settings, dict.fromkeys(("trainer", "explorer"), SHAPE), GIB, GIB)

    checks = replace(CHECKS, memory=memory)
    found = checks(draft_of(SOUND))
    assert found.is_sound
    assert "of memory, of 1.0" in found.too_large
    assert found.too_large in found.notes
    assert not checks(draft_of({**SOUND, "hardware.trainer_gpus": "1", "hardware.explorer_gpus": "1"})).too_large


def test_secrets_are_asked_for_by_their_variable_and_are_in_no_file() -> None:
    with pytest.raises(BadAnswerError, match="is a secret"):
        draft_of({"kafka.sasl_password": "hunter2"})
    with pytest.raises(BadAnswerError, match="no setting"):
        draft_of({"kafka.nothing": "1"})
    with pytest.raises(BadAnswerError, match="at most"):
        draft_of({"mesh.model_path": "x" * 30_000})
    assert checked(SOUND, console__user_header="X-User").secrets == ["TRINITY_BUS_CONSOLE__PROXY_KEY"]
    found = checked(SOUND, kafka__security_protocol="SASL_SSL", kafka__sasl_username="me", explorer__http_port="0")
    assert found.is_sound, found.problems
    assert set(found.secrets) == {"TRINITY_BUS_KAFKA__SASL_PASSWORD", "TRINITY_BUS_EXPLORER__HTTP_KEY"}
    assert "whatever" not in mesh_file(found.draft)


def test_rows_become_a_description_that_the_taskset_reads(tmp_path: Path) -> None:
    found = checked(
        SOUND, rows__path='a "b"/*.parquet', rows__prompt="question", rows__answer="a", rows__workflow="math"
    )
    assert found.is_sound, found.problems
    assert "taskset" in found.services
    rows = found.draft.rows
    assert isinstance(rows, TaskRows)
    (tmp_path / "tasks.toml").write_text(tasks_file(rows), encoding="utf-8")
    (source,) = describe(tmp_path / "tasks.toml").train
    assert (source.path, source.prompt, source.answer, source.workflow) == (rows.path, "${question}", "${a}", "math")
    assert tomllib.loads(mesh_file(found.draft))["taskset"]["path"] == "tasks.toml"


def test_services_are_asked_once() -> None:
    asked: list[str] = []

    def refused(service: str, settings: Sections) -> list[str]:
        asked.append(service)
        return refusals(service, settings)

    assert Checks(refused, shape_of, lambda _: True)(draft_of(SOUND)).is_sound
    assert sorted(asked) == ["coordinator", "explorer", "trainer"]


def test_each_explorer_has_gpus_of_its_own() -> None:
    settings = some(checked(SOUND, explorer__tensor_parallel_size="2").settings)
    hardware = Hardware(trainer_gpus=2, explorer_gpus=4)
    plan = planned(["coordinator", "trainer", "explorer", "taskset"], settings, hardware)
    assert [(one.name, list(one.gpus)) for one in plan] == [
        ("coordinator", []),
        ("trainer", [0, 1]),
        ("explorer-0", [2, 3]),
        ("explorer-1", [4, 5]),
        ("taskset", []),
    ]
    alone = planned(["coordinator", "explorer"], settings, Hardware())
    assert [one.name for one in alone] == ["coordinator", "explorer-0"]


@hypothesis_settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(random_answers())
def test_whatever_the_questions_yield_is_read_by_the_loader_and_taken_by_the_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]
) -> None:
    found = checked(
        {**SOUND, **answers, "rows.path": "" if not answers.get("rows.prompt") else answers.get("rows.path", "")}
    )
    if not found.is_sound:
        return
    file, tasks = tmp_path / "mesh.toml", tmp_path / "tasks.toml"
    if found.draft.rows is not None:
        tasks.write_text(tasks_file(found.draft.rows), encoding="utf-8")
        describe(tasks)
    file.write_text(mesh_file(found.draft, str(tasks)), encoding="utf-8")
    with monkeypatch.context() as patched:
        for name in [name for name in os.environ if name.startswith("TRINITY_BUS_")]:
            patched.delenv(name)
        patched.setenv(CONFIG_VARIABLE, str(file))
        read = Settings()
        assert [problem for service in found.services for problem in problems(service, read)] == []
    shown, own = read.model_dump(), some(found.settings).model_dump()
    differing = [
        path
        for path in fields()
        for section, _, name in [path.partition(".")]
        if shown[section][name] != own[section][name]
    ]
    assert differing == (["taskset.path"] if found.draft.rows else [])


def test_the_questions_cover_what_a_random_form_answers() -> None:
    assert ANSWERS.keys() == QUESTIONS.keys()


def told(service: str, name: str = "it", at: float = 1.0, **settings: str) -> SettingsRow:
    return SettingsRow(service, name, at, {path.replace("__", "."): text for path, text in settings.items()})


def test_what_differs_comes_first_and_values_of_one_run_stand_beside_each_other() -> None:
    one = [told("trainer", s__rate="1", s__seed="7"), told("explorer", s__slots="8", s__port="")]
    other = [told("trainer", s__rate="2", s__seed="7")]
    assert compared_settings([one, other]) == [
        ComparedSetting("s.rate", ("1", "2")),
        ComparedSetting("s.port", ("", None)),
        ComparedSetting("s.seed", ("7", "7")),
        ComparedSetting("s.slots", ("8", None)),
    ]
    assert [row.differs for row in compared_settings([one, other])] == [True, False, False, False]
    assert compared_settings([]) == []
    run = [
        told("explorer", f"explorer-{i}", s__core=value, s__slots="8")
        for i, value in enumerate(["0", "", "2", "3", "4"])
    ]
    assert compared_settings([run]) == [
        ComparedSetting("s.core", ("0, unset, 2 and 2 more",)),
        ComparedSetting("s.slots", ("8",)),
    ]
