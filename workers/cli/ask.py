"""``trinity-bus ask``: a question to a trained model."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from schemas.sampling import Sampling
from trinity_bus.chat import renderer_for
from trinity_bus.chat.encoding import encoder_of
from workers.demo.local_engine import LocalEngine
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
    typer.echo(_answer(folder, prompt, max_tokens=max_tokens))


def _answer(model: Path, prompt: str, *, max_tokens: int) -> str:
    # On the CPU, straight from its folder; the prompt goes through the chat template where the model has one.
    engine = LocalEngine(model)
    if engine.tokenizer.chat_template:
        token_ids = renderer_for(engine.tokenizer).prompt([{"role": "user", "content": prompt}], None)
    else:
        token_ids = encoder_of(engine.tokenizer).prompt(prompt)
    (answer,) = asyncio.run(engine.generate(token_ids, Sampling(temperature=0.0, max_tokens=max_tokens)))
    return engine.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
