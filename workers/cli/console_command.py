"""``trinity-bus console``: the console, in the foreground, for whoever sits at this machine."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import typer

from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.config.sources import MAX_TOML_BYTES, toml_of
from trinity_bus.errors import ConfigError
from trinity_bus.runtime.plain_files import NotPlainError, ensure_plain, read_plain
from trinity_bus.runtime.secrecy import keep_secrets
from trinity_bus.runtime.service import run_service
from trinity_bus.telemetry.logs import console as log_to_terminal
from workers.cli.connection import connected_settings, set_option
from workers.cli.console import say
from workers.runs import MODEL, RUNS

app = typer.Typer()

# Settings of "mesh" that a run's topics and records are named by; no other setting of a run is taken as it is
_READ_OF_A_RUN: Final = ("namespace", "model")


@app.command("console")
def look(
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of a finished run of the demo, to open its log.")] = None,
) -> None:
    """Show the mesh in a browser, live and at earlier moments, until Ctrl-C. See docs/console.md."""
    if port is not None:
        set_option(f"console.port={port}")
    with ExitStack() as stack:
        settings = connected_settings() if run_dir is None else _reopened(run_dir, stack)
        from workers.console.service import run

        log_to_terminal("WARNING")
        keep_secrets()

        def listens(address: str) -> None:
            say(f"The console is at http://{address}/  (Ctrl-C ends it)")

        run_service(lambda: run(settings, listens, is_record=run_dir is not None))


def _reopened(run_dir: Path, stack: ExitStack) -> Settings:
    # This user's settings, with a broker over the log of a run, which ends with the stack. A run is data that somebody
    # else may have made: of its own settings only what says how its log is to be read is taken, of its broker's folder
    # only what Kafka keeps there.
    from trinity_bus.broker import EmbeddedBroker

    mesh_file, data = run_dir / "mesh.toml", run_dir / "broker"
    if not mesh_file.is_file() or not data.is_dir() or data.is_symlink():
        raise typer.BadParameter(f"{run_dir} is no folder of a run: it lacks mesh.toml, or the broker's data")
    settings = Settings(mesh=_of_run(run_dir, mesh_file))
    changed: dict[str, object] = {}
    if settings.console.folder is None and run_dir.absolute().parent == RUNS.absolute():
        # Beside those of this user's other runs, to be compared with them.
        changed["console"] = settings.console.model_copy(update={"folder": RUNS.absolute() / "console"})
    own = settings.broker.model_copy(update={"port": 0, "data_dir": data})
    kafka = KafkaSettings(namespace=settings.kafka.namespace)
    changed["kafka"] = stack.enter_context(EmbeddedBroker(own)).kafka_settings(kafka)
    return settings.model_copy(update=changed)


def _of_run(run_dir: Path, mesh_file: Path) -> dict[str, object]:
    # Names, and the folder of the model where that is the run's own, and holds no links to somewhere else
    try:
        found = toml_of(read_plain(mesh_file, MAX_TOML_BYTES)).get("mesh")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{mesh_file}: {error}") from None
    mesh = found if isinstance(found, dict) else {}
    taken = {name: mesh[name] for name in _READ_OF_A_RUN if name in mesh}
    # What it began with, by its name, as the folder may have been moved since; else what came of it.
    for name in (Path(str(mesh.get("model_path", ""))).name, MODEL):
        model = run_dir / name
        if name and model.is_dir() and not model.is_symlink():
            try:
                ensure_plain(model)
            except NotPlainError as error:
                raise ConfigError(f"{error.filename}: {error.strerror}: the run's model is not read") from None
            return {**taken, "model_path": str(model)}
    return taken
