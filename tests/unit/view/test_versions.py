import io

from rich.console import Console

from schemas import ExplorerLeft, PublishedVersion, VersionWanted
from tests.support.fakes.announcements import announced
from tests.support.fakes.mesh_records import explorer_beat, trainer_beat, weights_synced
from trinity_bus.view import MeshState
from trinity_bus.view.state import ALIVE_S
from workers.cli.training.versions import table


def published(version: int, model: str = "policy") -> PublishedVersion:
    return PublishedVersion(
        model=model, version=version, step=version, method="gloo", trainer="trainer-0", trainer_incarnation="life",
        checksum=f"{version:064d}", checkpoint=f"/checkpoints/step-{version:08d}",
        metrics={"loss": 0.25, "reward_mean": 0.75},
    )  # fmt: skip


def view(*records: object, at: float = 100.0) -> MeshState:
    made = MeshState("policy")
    for record in records:
        made.apply(record, at)
    return made


def test_versions_are_listed_with_who_serves_them() -> None:
    seen = view(
        published(2),
        published(1),
        published(7, "other"),
        announced(1, pinned=True),
        explorer_beat("e0", model_version=1),
        explorer_beat("e1", model_version=2),
    )
    rows = seen.versions()
    assert [(row.record.version, row.served_by, row.announced, row.pinned) for row in rows] == [
        (1, ["e0"], True, True),
        (2, ["e1"], False, False),
    ]


def test_an_answer_counts_before_the_next_heartbeat_and_a_failure_does_not() -> None:
    seen = view(explorer_beat("e0", model_version=1), weights_synced("e0", 2))
    assert seen.serving(2) == ["e0"]
    seen.apply(weights_synced("e0", 3, ok=False), 100.0)
    seen.apply(weights_synced("e0", 3, incarnation="before"), 100.0)
    assert seen.serving(2) == ["e0"]


def test_who_fell_silent_or_left_serves_nothing() -> None:
    seen = view(explorer_beat("e0", model_version=1), explorer_beat("e1", model_version=1))
    assert seen.explorer_states() == {"ready": 2}
    seen.apply(ExplorerLeft(explorer="e1", incarnation="a"), 100.0)
    later = 100.0 + ALIVE_S + 1
    seen.tick(later)
    assert seen.explorer_states() == {"stopped": 1}
    assert seen.serving(1) == []


def test_the_trainer_lives_as_long_as_it_speaks() -> None:
    seen = view(trainer_beat(), VersionWanted(model="policy", at_least=3), VersionWanted(model="policy", version=1))
    seen.tick(105.0)
    assert seen.trainer_is_alive
    seen.tick(100.0 + ALIVE_S + 1)
    assert not seen.trainer_is_alive
    assert seen.wanted == 3


def test_the_table_shows_the_newest_and_what_is_served() -> None:
    seen = view(
        *(published(version) for version in range(10)),
        announced(3, pinned=True),
        explorer_beat("e0", model_version=3),
        explorer_beat("e1", model_version=5),
    )
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(seen.versions(), last=2))
    text = console.export_text()
    shown = [line.strip("│ ").split()[0] for line in text.splitlines() if "/checkpoints/" in line]
    assert shown == ["3", "5", "8", "9"]
    assert "3 pinned" in text
    assert "0.75" in text
