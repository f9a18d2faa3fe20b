"""``trinity-bus model``: the demo's tiny model with random weights, for meshes that are to be tried out."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def model(
    folder: Annotated[Path, typer.Argument(help="Folder to write, in Hugging Face's format.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of its weights.")] = 0,
) -> None:
    """Write a tiny model with random weights. An existing model is kept."""
    from workers.demo.model import make_model

    if (folder / "config.json").exists():
        typer.echo(f"{folder} has a model already")
        return
    make_model(folder, seed)
    typer.echo(f"{folder} has a model of random weights now")
