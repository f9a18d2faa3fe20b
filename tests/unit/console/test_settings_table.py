from trinity_bus.console.index.answers import SettingsRow
from workers.console.compare import ComparedSetting, compared_settings


def told(service: str, name: str = "it", **settings: str) -> SettingsRow:
    return SettingsRow(service, name, 0.0, {f"s.{path}": value for path, value in settings.items()})


def test_what_differs_comes_first() -> None:
    one = [told("trainer", rate="1", seed="7"), told("explorer", slots="8", port="")]
    other = [told("trainer", rate="2", seed="7")]
    assert compared_settings([one, other]) == [
        ComparedSetting("s.rate", ("1", "2")),
        ComparedSetting("s.port", ("", None)),
        ComparedSetting("s.seed", ("7", "7")),
        ComparedSetting("s.slots", ("8", None)),
    ]
    assert [row.differs for row in compared_settings([one, other])] == [True, False, False, False]
    assert compared_settings([]) == []


def test_services_of_one_run_that_differ_stand_beside_each_other() -> None:
    run = [told("explorer", f"explorer-{i}", core=value, slots="8") for i, value in enumerate(["0", "", "2", "3", "4"])]
    assert compared_settings([run]) == [
        ComparedSetting("s.core", ("0, unset, 2 and 2 more",)),
        ComparedSetting("s.slots", ("8",)),
    ]
