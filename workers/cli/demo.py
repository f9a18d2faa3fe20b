"""``trinity-bus demo``: a whole mesh on this machine teaches a model something."""

import logging
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.runners.confinement import environment
from trinity_bus.runtime.memory import importing
from trinity_bus.runtime.ports import free_port, is_free
from trinity_bus.runtime.preload import Preload
from trinity_bus.runtime.service import run_service
from workers.cli.console import console, say
from workers.demo.subjects import CONSOLE_PORT, COPY, SUBJECTS, DemoOptions
from workers.runs import SUMMARY, new_run, program

if TYPE_CHECKING:
    from workers.demo.report import Summary

app = typer.Typer()
out = console()

_GRACE_S = 40.0  # Limit of stopping all services and the broker


@app.command()
def demo(
    name: Annotated[str, typer.Argument(help=f"What the model learns: {', '.join(SUBJECTS)}.")] = COPY.name,
    *,
    # On one kind of processor seed 0 kept one prompt in fifty wrong, however long; on others all of 0 to 19 learn.
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights, the order of tasks, and sampling.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Maximum training steps. Unset: depends on NAME.")] = None,
    explorers: Annotated[int | None, typer.Option(min=1, max=16, help="Explorers. Unset: 2, and 1 for `sums`.")] = None,
    max_staleness: Annotated[int, typer.Option(min=0, help="Versions that samples may be older than on-policy.")] = 0,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run. Unset: in ./runs.", file_okay=False)] = None,
    early_stop: Annotated[
        bool,
        typer.Option("--early-stop/--all-steps", help="End when reward stays high and held-out prompts are answered."),
    ] = True,
    limit_s: Annotated[
        float | None, typer.Option("--limit", min=1, help="Time limit in seconds. Unset: enough for two cores.")
    ] = None,
) -> None:
    """Start a broker, a coordinator, explorers and a trainer, and teach a model something.

    ``copy``: to copy digits. ``tools``: to call a tool, and to call it again with its result. These two
    start from 0.3 million random weights. ``sums``: SmolLM2, a language model of 135 million weights, learns to add.
    Everything goes through the topics. Ctrl-C stops all of it.

    Exit code 1 if a service ended, the time limit was reached, or the model did not learn in the usual number of steps.
    """
    if name not in SUBJECTS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(SUBJECTS)}")
    subject = SUBJECTS[name]
    pretrained = None if subject.language else _pretrained()
    options = DemoOptions(
        run_dir=run_dir or new_run(time.strftime(f"%Y%m%d-%H%M%S-{name}-seed{seed}")),
        subject=subject,
        seed=seed,
        steps=steps or subject.steps,
        explorers=explorers or subject.explorers,
        max_staleness=max_staleness,
        early_stop=early_stop,
        limit_s=limit_s or subject.limit_s,
        pretrained=pretrained,
        console_port=CONSOLE_PORT if is_free(CONSOLE_PORT) else free_port(),
    )
    _begin_folder(options)
    logging.basicConfig(filename=options.log("demo"), level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    try:
        with begun_first(options) as shared:
            summary = _run(options, shared)
    except ConfigError:
        raise
    except TrinityError as error:
        say(f"The demo failed: {error}", style="red")
        raise typer.Exit(1) from error
    if summary is not None:
        _report(summary, options)
        if options.steps >= subject.steps and summary.exact_after < subject.learned:
            say(
                f"The model has not learned: {summary.exact_after:.1%} of the held-out prompts are answered exactly, "
                f"where {subject.learned:.0%} are usual. Try another --seed, and please report this one.",
                style="red",
            )
            raise typer.Exit(1)


@contextmanager
def begun_first(options: DemoOptions) -> Iterator[Preload]:
    """Provide the first of the processes that services are forked from, see ``workers.demo.preloads``.

    It begins before the demo knows its settings or has imported them: what starts a second earlier ends a second
    earlier. It ends with the block, with all that it has forked.
    """
    options.logs.mkdir(parents=True, exist_ok=True)
    functions, main = ["workers.coordinator.service"], "workers.cli.app:main"
    env, log = environment(os.environ, None), options.log("preload")
    with Preload.begin(functions, name="preload", main=main, env=env, output=log) as shared:
        yield shared


def _pretrained() -> Path:
    with importing():
        from trinity_bus.config import Settings
        from workers.demo.model import pretrained_folder

    folder = pretrained_folder(Settings())
    if not (folder / "config.json").is_file():
        raise ConfigError(f"The model is not in {folder}: `make demo NAME=sums`, in a checkout, fetches it")
    return folder


def _run(options: DemoOptions, shared: Preload) -> "Summary | None":
    # Run the demo; None where it was told to end. What it needs is imported while others import for it.
    with importing():
        from trinity_bus.config import Settings
        from workers.demo import preloads

    settings = Settings()
    with preloads.begun(settings, options, shared) as begun:
        with importing():
            from workers.demo.demo import run_demo
            from workers.demo.display import make_display

        display = make_display(out, options.steps)
        with display.running():
            return run_service(lambda: run_demo(settings, options, display, begun), grace_s=_GRACE_S)


def _report(summary: "Summary", options: DemoOptions) -> None:
    from workers.demo.report import PLOT, results_table, stages_table

    folder = options.run_dir
    run_dir, model = shlex.quote(str(folder)), shlex.quote(str(summary.model))
    out.print(stages_table(summary))
    out.print(results_table(summary))
    for label, value in (
        ("Reward plot", folder / PLOT),
        ("Summary", folder / SUMMARY),
        ("Settings", options.mesh_file),
        ("Model", f"{summary.model} (a Hugging Face folder)"),
        ("Ask it", options.subject.try_it.format(program=program(), model=model)),
        ("Look at it", f"{program()} console --run-dir {run_dir}"),
        ("A task's way", f"{program()} trace {shlex.quote(summary.trace_task)} --run-dir {run_dir}"),
    ):
        say(f"{label + ':':13} {value}")


def _begin_folder(options: DemoOptions) -> None:
    # In a folder that must be empty or absent: a run never mixes with another
    folder = options.run_dir
    refusal = ConfigError(f"--run-dir {folder} is not empty; give a new folder")
    if folder.exists() and any(folder.iterdir()):
        raise refusal
    try:
        options.logs.mkdir(parents=True)
    except FileExistsError:
        # Another demo has looked at the same moment, and was quicker.
        raise refusal from None
