"""``trinity-bus size``: what a mesh on so many GPUs does, and what it needs."""

import json
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from trinity_bus.config import Settings
from trinity_bus.hub import model_folder
from trinity_bus.sizing.fleet import SizeFigure, SizingInput, sized
from trinity_bus.sizing.hardware import GPUS
from trinity_bus.sizing.memory import MODELS
from trinity_bus.training.families import ModelShape, read_shape
from workers.cli.console import console, folding_table

_MOST_TOKENS: Final = 1 << 30
_MOST_GBIT_S: Final = 1e6

app = typer.Typer()


def _measured(what: str) -> Any:
    speed = f"Your measurement of {what} tokens per second on a GPU."
    return typer.Option(min=1e-3, max=_MOST_TOKENS, help=speed)


@app.command()
def size(  # noqa: PLR0917 - typer makes options of them
    gpus: Annotated[int, typer.Option(min=2, max=100_000, help="Number of GPUs.")],
    model: Annotated[str, typer.Option(help=f"A folder with config.json, or a Qwen3 model: {', '.join(MODELS)}.")],
    gpu: Annotated[str, typer.Option(help=f"Type of GPU: {', '.join(GPUS)}.")] = "H100",
    prompt_tokens: Annotated[int, typer.Option(min=1, max=_MOST_TOKENS, help="Mean prompt of a task.")] = 512,
    response_tokens: Annotated[int, typer.Option(min=1, max=_MOST_TOKENS, help="Mean response of a sample.")] = 4096,
    gbit_s: Annotated[float, typer.Option(min=0.001, max=_MOST_GBIT_S, help="Speed of a machine's network.")] = 100.0,
    rollout_tokens_s: Annotated[float | None, _measured("rollout")] = None,
    train_tokens_s: Annotated[float | None, _measured("training")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compute tasks, bytes, partitions, brokers, transfers and staleness, each with its formula. Connects to nothing.

    Batches, groups, staleness and lengths come from the settings: ``trinity-bus --set coordinator.batch_size=512
    size ...``. See docs/sizing.md.
    """
    if gpu not in GPUS:
        raise typer.BadParameter(f"{gpu!r} is not one of {', '.join(GPUS)}", param_hint="--gpu")
    found = sized(
        SizingInput(
            gpus=gpus,
            gpu=GPUS[gpu],
            shape=_shape(model),
            settings=Settings(),
            prompt_tokens=prompt_tokens,
            response_tokens=response_tokens,
            gbit_s=gbit_s,
            rollout_tokens_s=rollout_tokens_s,
            train_tokens_s=train_tokens_s,
        )
    )
    if as_json:
        typer.echo(json.dumps([asdict(figure) for figure in found], indent=2))
    else:
        console().print(_table(found))


def _shape(model: str) -> ModelShape:
    if model in MODELS:
        return MODELS[model]
    folder = model_folder(model, weights=False)
    if not (folder / "config.json").is_file():
        raise typer.BadParameter(
            f"{model!r} is none of {', '.join(MODELS)}, no folder with config.json, and no organization/name of a hub",
            param_hint="--model",
        )
    return read_shape(folder)


def _table(found: list[SizeFigure]) -> Table:
    table = folding_table("what", "how much", "", "from", box=None)
    table.columns[1].justify = "right"
    for figure in found:
        warning = Text(f"; {figure.warning}" if figure.warning else "", "yellow")
        table.add_row(figure.name, figure.shown, figure.unit, Text(figure.formula) + warning)
    return table
