"""``trinity-bus ask``: a question to a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from workers.demo.ask import ask as answer
from workers.runs import MODEL, newest_run

app = typer.Typer(add_completion=False, help="Query a trained model.")


@app.command()
def ask(
    prompt: Annotated[str, typer.Argument(help='Such as "copy 3 1 4 =".')],
    model: Annotated[
        Path | None, typer.Option("--model", help="A Hugging Face folder. Unset: that of the newest run in ./runs.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest response, in tokens.")] = 32,
) -> None:
    """Print the model's greedy response."""
    folder = model if model is not None else newest_run(MODEL) / MODEL
    typer.echo(answer(folder, prompt, max_tokens=max_tokens))
