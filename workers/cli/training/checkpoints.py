"""``trinity-bus checkpoints``: what a trainer has saved, here or at a URL, whether it is whole, and the model in it."""

import contextlib
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from pydantic import TypeAdapter, ValidationError
from rich.table import Table
from rich.text import Text

from schemas.errors import printable
from trinity_bus import hub
from trinity_bus.config import Settings, required
from trinity_bus.config.values import ObjectUrl
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import exclusive
from trinity_bus.training.checkpoint.listing import Listed, convert, listed
from trinity_bus.training.checkpoint.mirror import CheckpointsThere
from trinity_bus.training.errors import CheckpointError
from workers.cli.console import console, folding_table, say, show

app = typer.Typer(no_args_is_help=True)
out = console()

_NO: Final = 1

_Where = Annotated[
    str | None, typer.Option("--dir", help="Folder of the checkpoints, or URL. Unset: trainer.checkpoint_dir.")
]
_Model = Annotated[Path | None, typer.Option("--model", help="Configuration and tokenizer. Unset: mesh.model_path.")]
_Source = Annotated[str, typer.Argument(help="A step, a folder, or a global_step_N of Trinity-RFT.")]
_Json = Annotated[bool, typer.Option("--json", help="Print every checkpoint as a JSON object on one line.")]


@app.command("list")
def list_(where: _Where = None, as_json: _Json = False) -> None:
    """List the checkpoints: step, version, position in the log, engine, size, and whether each is a model folder."""
    found = _listed(where)
    show(out, table(found), map(_plain, found), as_json=as_json)


@app.command()
def verify(
    where: _Where = None,
    steps: Annotated[list[int] | None, typer.Argument(help="Steps to verify. Unset: all.")] = None,
    as_json: _Json = False,
) -> None:
    """Read every file of the checkpoints and compare it with its digest. Exit code 1 if one is damaged or missing."""
    found = _listed(where, verified=True)
    chosen = [one for one in found if not steps or one.step in steps]
    missing = sorted(set(steps or ()) - {one.step for one in chosen})
    for step in missing:
        say(f"there is no checkpoint of step {step}", stderr=True)
    show(out, table(chosen), map(_plain, chosen), as_json=as_json)
    for one in chosen:
        if one.problem:
            say(one.problem, stderr=True)
    if missing or any(one.problem for one in chosen):
        raise typer.Exit(_NO)


@app.command("convert")
def convert_(
    source: _Source,
    target: Annotated[Path, typer.Argument(help="Where to write. With --to reference: the job's folder.")],
    form: Annotated[
        Literal["hf", "reference"], typer.Option("--to", help="A model folder, or the layout of Trinity-RFT's trainer.")
    ] = "hf",
    model: _Model = None,
    where: _Where = None,
) -> None:
    """Convert a checkpoint's model to a Hugging Face folder, or to or from Trinity-RFT's layout."""
    with _source(source, where) as folder:
        written = convert(folder, target, form, model or _described())
    say(f"The model is in {written}.", stderr=True)


@app.command()
def push(  # noqa: PLR0917 - options, which have names
    source: _Source,
    repository: Annotated[str, typer.Argument(help="Repository, organization/name; created if missing.")],
    branch: Annotated[str | None, typer.Option(help="Branch of the repository. Unset: its main branch.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    model: _Model = None,
    where: _Where = None,
) -> None:
    """Upload a checkpoint's model to a model hub, through a temporary copy. HF_TOKEN authenticates."""
    with _source(source, where) as folder, tempfile.TemporaryDirectory(prefix="trinity-bus-") as temporary:
        written = convert(folder, Path(temporary) / "model", "hf", model or _described())
        found = hub.push(written, repository, branch=branch, public=public, message=f"Trained model of {folder.name}")
    say(f"The model is {found}.", stderr=True)


@app.command()
def fetch(
    step: Annotated[int | None, typer.Argument(help="Its step. Unset: the newest.")] = None,
    url: Annotated[str | None, typer.Option("--from", help="URL. Unset: trainer.checkpoint_url.")] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="A folder without checkpoints. Unset: trainer.checkpoint_dir.")
    ] = None,
) -> None:
    """Fetch a checkpoint from a URL into an empty folder. A trainer with both continues from it, and discards later."""
    own = Settings().trainer
    there = _there(url or required(own.checkpoint_url, "trainer.checkpoint_url", "to fetch from; or --from"))
    target = directory or required(own.checkpoint_dir, "trainer.checkpoint_dir", "to fetch into; or say --dir")
    life, index = there.index()
    with exclusive(target):
        if kept := checkpoint.steps(target):
            raise CheckpointError(f"{target} has checkpoints, of steps {kept}: give an empty folder with --dir")
        folder = there.fetch(life, index, max(index.to_go_on_from(), default=0) if step is None else step, target)
    say(f"The checkpoint is in {folder}.", stderr=True)


@contextlib.contextmanager
def _source(given: str, where: str | None) -> Iterator[Path]:
    if _is_url(given):
        raise CheckpointError("the source is a URL: give it with --dir, and the step in place of it")
    if not given.isdecimal():
        yield Path(given)
    elif where is not None and _is_url(where):
        with tempfile.TemporaryDirectory(prefix="trinity-bus-") as temporary:
            there = _there(where)
            yield there.fetch(*there.index(), int(given), Path(temporary))
    elif (folder := checkpoint.of_step(_directory(where), int(given))) is not None:
        yield folder
    else:
        raise CheckpointError(f"there is no checkpoint of step {given}")


def _there(url: str) -> CheckpointsThere:
    try:
        return CheckpointsThere(TypeAdapter[str](ObjectUrl).validate_python(url))
    except ValidationError:
        # It may have a secret, which is not shown.
        raise CheckpointError(
            "a URL of checkpoints is like s3://bucket/run, without credentials and options: its library finds them in "
            "environment variables and files"
        ) from None


def _is_url(where: str) -> bool:
    return "://" in where


def _listed(where: str | None, *, verified: bool = False) -> list[Listed]:
    if where is not None and _is_url(where):
        return _there(where).listed(verified=verified)
    return listed(_directory(where), verified=verified)


def _described() -> Path | None:
    name = Settings().mesh.model_path
    return None if name is None else hub.model_folder(name, weights=False)


def _directory(given: str | None) -> Path:
    if given is not None:
        return Path(given)
    return required(
        Settings().trainer.checkpoint_dir, "trainer.checkpoint_dir", "to find the checkpoints; or say --dir"
    )


def table(found: list[Listed]) -> Table:
    shown = folding_table(
        "step", "version", "written", "sequence", "next offset", "engine", "MiB", "model folder", "state"
    )
    for one in found:
        manifest = one.manifest
        progress = None if manifest is None else manifest.progress
        shown.add_row(
            str(one.step),
            "" if progress is None else str(progress.version),
            datetime.fromtimestamp(one.written).strftime("%m-%d %H:%M:%S"),
            "" if progress is None else str(progress.sequence),
            "" if progress is None else str(progress.batches_offset),
            Text("" if manifest is None else printable(f"{manifest.engine}, {manifest.dtype.removeprefix('torch.')}")),
            f"{one.nbytes / 2**20:.1f}",
            "yes" if one.is_hf else "no",
            "damaged" if one.problem else "whole",
        )
    shown.caption = None if found else "there is no checkpoint"
    return shown


def _plain(one: Listed) -> dict[str, Any]:
    return {
        "step": one.step,
        "folder": one.where,
        "bytes": one.nbytes,
        "is_hf": one.is_hf,
        "problem": one.problem,
        **({} if one.manifest is None else one.manifest.model_dump(mode="json", exclude={"files", "digests", "seal"})),
    }
