import io
from typing import Any

from rich.console import Console

from schemas import BatchRecord, StepTrained
from tests.support.fakes.mesh_records import batch, explorer_beat, step_trained, weights_synced
from trinity_bus.runtime.supervisor import Activity
from trinity_bus.view import MeshState
from workers.demo.display import LiveDisplay, PlainDisplay, make_display


def terminal(width: int = 120) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=60)


def pipe() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def trained(step: int) -> StepTrained:
    return step_trained(step, batch_id=f"b{step}", metrics={"loss": 0.125, "staleness_mean": 1.0})


def finalized(step: int) -> BatchRecord:
    done: dict[str, Any] = dict.fromkeys(("expected_task_count", "completed_task_count"), 64)
    return batch(f"b{step}", sequence=step, metrics={"rollout/reward/mean": 0.625}, **done)


def test_a_pipe_gets_one_line_for_each_step_once_its_reward_is_known() -> None:
    console = pipe()
    display = make_display(console, 9)
    assert isinstance(display, PlainDisplay)
    view = MeshState()
    view.apply(explorer_beat(model_version=1), 1.0)
    view.apply(trained(1), 1.0)
    with display.running():
        display.stage("train")
        display.update(view)
        assert "step 1" not in text(console)
        view.apply(finalized(1), 1.0)
        display.update(view)
        display.update(view)
    assert text(console).count("step 1/9  reward 0.625  loss +0.1250  staleness 1.00") == 1
    assert "explorer-0=v1" in text(console)
    assert "\x1b" not in text(console)


def test_a_terminal_gets_a_picture() -> None:
    console = terminal()
    display = make_display(console, 9)
    assert isinstance(display, LiveDisplay)
    view = MeshState()
    for record in (explorer_beat(model_version=1), trained(1), finalized(1)):
        view.apply(record, 1.0)
    view.apply(weights_synced("explorer-0", 1, ok=False, error="[red]not markup"), 1.0)
    with display.running():
        display.stage("start")
        display.note("a line that stays")
        display.update(view)
        display.stage("train")
    shown = text(console)
    for part in ("Trinity Bus", "train", "1/9", "explorer-0", "64/64", "0.625", "a line that stays", "[red]not markup"):
        assert part in shown


def test_a_pipe_is_told_how_long_things_take_and_never_left_alone_for_long() -> None:
    now = 0.0
    display = PlainDisplay(console := pipe(), 3, lambda: now)
    display.stage("start the services")
    for now in (1.0, 2.0, 3.5, 4.0, 6.5):
        display.starting([Activity("trainer", "loading the model", now)])
        display.update(MeshState())
    now = 7.0
    display.stage("train")
    now = 9.0
    display.update(MeshState())
    now = 11.0
    display.update(MeshState())
    assert text(console).splitlines() == [
        "   0.0 s  start the services ...",
        "   1.0 s  trainer: loading the model",
        "   4.0 s  start the services, 4 s: trainer: loading the model, 4 s",
        "   7.0 s  train ... (start the services took 7.0 s)",
        "  11.0 s  train, 4 s: 0 tokens/s",
    ]


def test_while_services_start_each_is_shown_with_what_it_does() -> None:
    doing = [Activity("trainer", "loading the model", 3.0), Activity("vllm", "imports", 75.0)]
    lines = PlainDisplay(console := pipe(), 3)
    lines.starting(doing)
    lines.starting([Activity("trainer", "loading the model", 4.0), Activity("vllm", "ready", 0.0)])
    assert [line.partition("s  ")[2] for line in text(console).splitlines()] == [
        "trainer: loading the model",
        "vllm: imports",
        "vllm: ready (+75.0 s)",
    ]
    picture = LiveDisplay(console := terminal(), 3)
    with picture.running():
        picture.starting(doing)
        picture.update(MeshState())
        assert "loading the model" in text(console)
        assert "75 s" in text(console)
        console.file.seek(0)
        console.file.truncate()
        picture.stage("train")
    assert "loading the model" not in text(console)
