"""The command ``trinity-bus``.

A command's module is imported only when the command runs: ``--help`` and the light commands start at once, and never
load a machine-learning framework. To add a command, add it to the ``typer.Typer`` named ``app`` of its noun's module,
and to ``COMMANDS``. A name that is no command of its module's ``app`` is that of the whole group.

What goes wrong is one line on standard error. Exit codes: 0 done, 1 the command's answer is no or it broke, 2 wrong
usage, wrong setting or an error that the line explains, 130 interrupted. A service (``run``) ends with 78 where it
cannot work with what it was told, so that whoever starts it again knows that this would not help.
"""

import difflib
import errno
import importlib
import inspect
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from trinity_bus.runtime.memory import importing

# What a machine says of a path that was given, and no program can mend
_UNUSABLE = {errno.EACCES, errno.EDQUOT, errno.ENAMETOOLONG, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS}
_ERROR = 2
_INTERRUPTED = 130
# Names the file of settings; the same as that of ``trinity_bus.config``, which is slow to import
CONFIG_VARIABLE = "TRINITY_BUS_CONFIG"
_WHOLE_MESH = "broker,explorer-cpu,trainer-cpu,demo"
# Packages that a base installation does not have, and the extras that bring what is needed with them
EXTRAS = {
    "aiohttp": "console",
    "harbor": "harbor",
    "jinja2": "console",
    "matplotlib": _WHOLE_MESH,
    "megatron": "trainer-cpu",
    "prometheus_client": "gateway",
    "pyarrow": "tasksets",
    "reasoning_gym": "gym",
    "safetensors": _WHOLE_MESH,
    "tensorboard": "tensorboard",
    "tokenizers": _WHOLE_MESH,
    "torch": _WHOLE_MESH,
    "trackio": "trackio",
    "transformers": _WHOLE_MESH,
    "vllm": "explorer-cpu",
    "wandb": "wandb",
}


@dataclass(frozen=True, slots=True)
class Lazy:
    module: str  # In ``workers.cli``
    help: str  # One line for ``trinity-bus --help``, and what a group shows
    panel: str  # Heading in ``trinity-bus --help``


_SEE = "See and try"
_MESH = "Run the mesh"
_LOG = "The log"

# In the order of ``trinity-bus --help``
COMMANDS: dict[str, Lazy] = {
    "demo": Lazy("demo", "Start a whole mesh on this machine and watch a model learn.", _SEE),
    "doctor": Lazy("doctor", "Check this machine for everything that a mesh needs.", _SEE),
    "size": Lazy("size", "Compute the throughput and needs of a mesh for a number of GPUs.", _SEE),
    "ask": Lazy("training.model", "Query a trained model.", _SEE),
    "bench": Lazy("training.bench", "Evaluate every checkpoint of a run on the same task sets.", _SEE),
    "status": Lazy("status", "Show batches, explorers, versions and lag, live.", _SEE),
    "batches": Lazy("batches", "List the batches, and skip one that stops the trainer.", _SEE),
    "runners": Lazy("status", "Show every runner of every explorer, live.", _SEE),
    "trace": Lazy("track", "Print a task's trace, from its send to the gradient, as a tree.", _SEE),
    "console": Lazy("console_command", "Show every rollout in a browser, live and earlier.", _SEE),
    "up": Lazy("up", "Run your own mesh on this machine until its training is done.", _MESH),
    "down": Lazy("up", "Stop a mesh that `up` runs.", _MESH),
    "run": Lazy("run", "Run one service: coordinator, explorer, trainer, taskset, gateway, console.", _MESH),
    "model": Lazy("training.model", "Write a tiny model with random weights, to try a mesh with.", _MESH),
    "config": Lazy("config", "Write, show and check a settings file.", _MESH),
    "broker": Lazy("broker", "Start, stop and inspect the embedded Kafka broker.", _MESH),
    "workflow": Lazy("workflow", "Create your own workflow, or run one of its tasks.", _MESH),
    "tasks": Lazy("tasks", "Check task sets, count them, and show their first tasks.", _LOG),
    "harbor": Lazy("tasks", "Run Harbor tasks with agents that use a gateway, and contribute the results.", _LOG),
    "produce": Lazy("tasks", "Produce tasks from a JSONL file, or from standard input.", _LOG),
    "versions": Lazy("training.versions", "List the model's versions, and choose which is served.", _SEE),
    "checkpoints": Lazy("training.checkpoints", "List, verify and convert the trainer's checkpoints.", _SEE),
    "replay": Lazy("training.replay", "Train steps of a run again, with other settings if given.", _MESH),
    "upgrade": Lazy("coordinator", "Finalize an upgrade: write state that only the new version reads.", _MESH),
    "abort": Lazy("batches", "Abort a batch.", _LOG),
    "dead-letters": Lazy("topics", "List the refused records, and why.", _LOG),
    "track": Lazy("track", "Write metrics for trackers of experiments, or as JSON lines.", _LOG),
    "access": Lazy("access", "Set the mesh's users and rights on a cluster with access control.", _LOG),
    "positions": Lazy("coordinator", "Show and set the coordinator's positions in its inputs.", _LOG),
    "topics": Lazy("topics", "List, create and grow the topics.", _LOG),
}


class LazyGroup(TyperGroup):
    """A group whose members are known by name and one line of help until one of them is to run."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        lazy = COMMANDS.get(cmd_name)
        return None if lazy is None else TyperCommand(cmd_name, help=lazy.help, rich_help_panel=lazy.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to run, imported. Raises UsageError, which names the nearest one, where there is none."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        name, _, rest = super().resolve_command(ctx, args)
        lazy = COMMANDS[str(name)]
        with importing():
            module = importlib.import_module(f"workers.cli.{lazy.module}")
        group: Any = typer.main.get_group(module.app)
        group.help = group.help or lazy.help
        command = group.commands.get(name, group)
        command.name = name
        _unwrap(command)
        return name, command, rest


def _unwrap(command: Any) -> None:
    # Join the lines of each paragraph of help, which the terminal wraps anew; code in two backticks gets one
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).replace("``", "`")
    for inner in getattr(command, "commands", {}).values():
        _unwrap(inner)


app = typer.Typer(
    name="trinity-bus",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_commands: list[str | None] = []  # The one that runs; none while it is not known yet


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"trinity-bus {version('trinity-bus')}")
        raise typer.Exit


@app.callback()
def trinity_bus(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of settings, in TOML.", envvar=CONFIG_VARIABLE)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SETTING=VALUE", help="One setting, such as coordinator.batch_size=32."),
    ] = None,
) -> None:
    """Reinforcement fine-tuning of language models as an event-driven mesh on Apache Kafka.

    Settings come from --set, else from environment variables that start with TRINITY_BUS_, else from the file.
    """
    _commands.append(ctx.invoked_subcommand)
    # Through the environment, so that every process that a command starts has the same.
    if config is not None:
        os.environ[CONFIG_VARIABLE] = str(config)
    for setting in settings or ():
        from workers.cli.connection import set_option

        set_option(setting)


def main() -> None:
    """Entry point: run the command, and say in one line what went wrong."""
    _commands.clear()
    try:
        app()
    except KeyboardInterrupt:
        # Of a command that runs: typer's affair. Of one that is still being loaded, or says what is wrong, nobody's.
        sys.exit(_INTERRUPTED)
    except Exception as error:
        line = _explained(error)
        if line is None:
            raise
        from schemas.errors import printable

        # It may quote what came over the wire.
        sys.stderr.write(f"trinity-bus: {printable(line)}\n")
        sys.exit(_status(error))


def _status(error: Exception) -> int:
    from trinity_bus.errors import AccessDeniedError, ConfigError, SupersededError, TopicMismatchError
    from trinity_bus.runtime.supervisor import SETTINGS_STATUS

    stays = AccessDeniedError, ConfigError, ModuleNotFoundError, SupersededError, TopicMismatchError
    return SETTINGS_STATUS if _commands[-1:] == ["run"] and isinstance(error, stays) else _ERROR


def _explained(error: Exception) -> str | None:
    from trinity_bus.errors import TrinityError

    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        extras = EXTRAS.get(package)
        return (
            extras and f"this needs the package {package}, which an extra brings: pip install 'trinity-bus[{extras}]'"
        )
    if isinstance(error, OSError) and error.filename is not None and error.errno in _UNUSABLE:
        return f"{error.filename} cannot be used: {error.strerror}; give another path, or see to its rights and disk"
    return str(error) if isinstance(error, TrinityError) else None


if __name__ == "__main__":
    main()
