"""``trinity-bus replay``: steps of a run trained once more, with other settings perhaps, beside the run itself."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from trinity_bus.errors import ConfigError
from trinity_bus.runtime.service import run_service
from trinity_bus.telemetry import setup_telemetry
from trinity_bus.telemetry.logs import console as log_to_console
from trinity_bus.telemetry.logs import wanted_level
from trinity_bus.training.ranks.launch import launch_of
from workers.cli.connection import connected_settings, set_option
from workers.preconditions import checkpoint_dir

app = typer.Typer()


def beside(checkpoints: Path, name: str) -> Path:
    """Return the folder of a replay's checkpoints: beside those of the live run, whatever its name."""
    return checkpoints.with_name(f"{checkpoints.name}-{name.replace('/', '-')}")


@app.command()
def replay(
    from_step: Annotated[int, typer.Option(min=1, help="The first step with the changed settings.")],
    to_step: Annotated[int | None, typer.Option(min=1, help="The last step. Unset: the last that has begun.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SETTING=VALUE", help="A changed setting, such as trainer.loss=gspo."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the replay: on `steps`, in metrics, of its folder. Unset: replay-N."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Folder of its checkpoints. Unset: beside trainer.checkpoint_dir.", file_okay=False),
    ] = None,
) -> None:
    """Train steps of a run again from the log, without explorers, with the same samples and initial weights.

    Settings are the live trainer's; --set after the command changes them from that step on.
    Without changes it repeats the live run, on a CPU bit for bit. It writes nothing of the live run, which may continue
    meanwhile. Metrics of each step are in metrics.jsonl, beside the checkpoints.
    """
    launch = launch_of(os.environ)
    if launch is not None:
        raise ConfigError(
            f"WORLD_SIZE={launch.world_size}: a launcher has started {launch.world_size} of this, and a replay starts "
            "its ranks itself, on this machine: run `trinity-bus replay` without torchrun"
        )
    live = connected_settings()
    for change in changes or ():
        # What an objective is made of are settings of the trainer.
        set_option(re.sub(r"^objective\.", "trainer.", change))
    called = name or f"replay-{from_step}"
    lives_in = checkpoint_dir(live)
    own = directory or beside(lives_in, called)
    changed = connected_settings()
    log_to_console(wanted_level())
    from workers.trainer.replay import ReplayRequest, replay

    async def train() -> int:
        telemetry = setup_telemetry("trainer", changed.telemetry, namespace=changed.kafka.namespace, instance=called)
        try:
            return await replay(ReplayRequest(live, changed, called, own, from_step, to_step))
        finally:
            telemetry.shutdown()

    last = run_service(train)
    if last is not None:
        trained = f"step {from_step} is" if last == from_step else f"steps {from_step} to {last} are"
        typer.echo(f"{trained} trained: checkpoints and metrics.jsonl are in {own}")
