from typing import Any

from trinity_bus.config import ConsoleSettings, KafkaSettings, Settings, TrainerSettings, told_settings
from trinity_bus.console.configuration.files import differences
from trinity_bus.console.index.answers import SettingsRow
from workers.console.configuration import running_settings
from workers.console.index_pages import ComparedSetting, compared_settings

OWN = Settings(kafka=KafkaSettings(bootstrap_servers="there:1"), console=ConsoleSettings(port=8901))


def told(service: str, name: str = "it", at: float = 1.0, **settings: str) -> SettingsRow:
    return SettingsRow(service, name, at, {path.replace("__", "."): text for path, text in settings.items()})


def changes(before: Any, **trainer: Any) -> dict[str, tuple[str, str]]:
    after = OWN.model_copy(update={"trainer": TrainerSettings(**trainer)})
    return {one.path: (one.before, one.after) for one in differences(before, after)}


def test_what_services_told_stands_over_the_consoles_own() -> None:
    trainer = told_settings(Settings(trainer=TrainerSettings(advantage="rloo", kl_coef=0.5)), "mesh", "trainer")
    rows = [
        SettingsRow("trainer", "trainer-0", 2.0, trainer | {"trainer.name": '"trainer-0"'}),
        told("trainer", "before", 1.0, trainer__advantage='"opmd"'),
        told("explorer", "explorer-0", explorer__temperature="0.7", explorer__no_such_setting="1"),
    ]
    found = running_settings(OWN, rows)
    assert [row.name for row in found.told] == ["explorer-0", "trainer-0"]
    assert found.refused == []
    assert (found.settings.kafka.bootstrap_servers, found.settings.console.port) == ("there:1", 8901)
    assert changes(found.settings, advantage="rloo", kl_coef=0.25) == {
        "explorer.temperature": ("0.7", "1.0"),
        "trainer.kl_coef": ("0.5", "0.25"),
    }


def test_what_a_service_has_not_set_is_not_the_consoles() -> None:
    own = Settings(trainer=TrainerSettings(overlong_buffer=4))
    assert (
        running_settings(own, [told("trainer", "t", trainer__overlong_buffer="")]).settings.trainer == TrainerSettings()
    )
    assert running_settings(own, []).settings.trainer.overlong_buffer == 4


def test_what_cannot_be_is_left_out_and_said() -> None:
    rows = [
        told("explorer", "e", explorer__temperature='"hot"', explorer__max_num_seqs="9"),
        told("trainer", "t", trainer__advantage='"cut'),
        told("coordinator", "c", coordinator__group_size="4"),
    ]
    found = running_settings(OWN, rows)
    assert [row.name for row in found.told] == ["c", "e"]
    assert [(row.name, why.split("=")[0]) for row, why in found.refused] == [
        ("e", "explorer.temperature"),
        ("t", "what was told of trainer.advantage is no value: '\"cut'"),
    ]
    assert (found.settings.coordinator.group_size, found.settings.explorer.max_num_seqs) == (4, 9)


def test_what_differs_comes_first() -> None:
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


def test_services_of_one_run_that_differ_stand_beside_each_other() -> None:
    run = [
        told("explorer", f"explorer-{i}", s__core=value, s__slots="8")
        for i, value in enumerate(["0", "", "2", "3", "4"])
    ]
    assert compared_settings([run]) == [
        ComparedSetting("s.core", ("0, unset, 2 and 2 more",)),
        ComparedSetting("s.slots", ("8",)),
    ]
