"""``trinity-bus model`` and ``ask``: a tiny model to try a mesh with, and a question to a trained one."""

import asyncio
from itertools import cycle
from pathlib import Path
from typing import Annotated

import typer

from schemas.sampling import Sampling
from workers.runs import MODEL, newest_run

app = typer.Typer()


@app.command()
def model(
    folder: Annotated[Path, typer.Argument(help="Folder to write, in Hugging Face's format.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of its weights.")] = 0,
) -> None:
    """Write a tiny model with random weights. An existing model is kept."""
    from workers.demo.model import make_model

    if (folder / "config.json").exists():
        typer.echo(f"{folder} has a model already")
        return
    make_model(folder, seed)
    typer.echo(f"{folder} has a model of random weights now")


@app.command()
def ask(
    turns: Annotated[
        list[str],
        typer.Argument(metavar="PROMPT", help="The prompt. Of several turns, the user's and the model's in turn."),
    ],
    model: Annotated[Path | None, typer.Option(help="A Hugging Face folder. Unset: that of the newest run.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message. Unset: what the chat template has.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest response, in tokens.")] = 32,
) -> None:
    """Print the model's greedy response."""
    from trinity_bus.chat import renderer_for
    from trinity_bus.chat.encoding import encoder_of
    from workers.demo.local_engine import LocalEngine

    # On the CPU, straight from its folder; the prompt goes through the chat template where the model has one.
    if len(turns) % 2 == 0 and system is None:
        raise typer.BadParameter(f"the last turn is the user's, and there are {len(turns)}, without --system")
    engine = LocalEngine(model if model is not None else newest_run(MODEL) / MODEL)
    if engine.tokenizer.chat_template:
        said = [] if system is None else [{"role": "system", "content": system}]
        roles = cycle(("user", "assistant") if len(turns) % 2 else ("assistant", "user"))
        said += [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
        token_ids = renderer_for(engine.tokenizer).prompt(said, None)
    elif len(turns) > 1 or system is not None:
        raise typer.BadParameter("this model has no chat template: it takes one prompt")
    else:
        token_ids = encoder_of(engine.tokenizer).prompt(turns[0])
    (answer,) = asyncio.run(engine.generate(token_ids, Sampling(temperature=0.0, max_tokens=max_tokens)))
    typer.echo(engine.tokenizer.decode(answer.token_ids, skip_special_tokens=True))
