"""``trinity-bus model``: the demo's tiny model with random weights, for meshes that are to be tried out."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def model(
    folder: Annotated[Path, typer.Argument(help="Where it goes, as a Hugging Face folder.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of its weights.")] = 0,
) -> None:
    """Write a tiny model with random weights. A folder that has a model already is left as it is."""
    from workers.demo.model import make_model

    if (folder / "config.json").exists():
        typer.echo(f"{folder} has a model already")
        return
    make_model(folder, seed)
    typer.echo(f"{folder} has a model of random weights now")
