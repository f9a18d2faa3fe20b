"""``trinity-bus versions``: every version that was published, who serves which, and which is to be served."""

import contextlib
import getpass
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from schemas.errors import printable
from schemas.record import MAX_PERSON_CHARS
from schemas.topics import EVENTS, MODEL_VERSIONS, VERSION_HISTORY
from trinity_bus.bus import Bus
from trinity_bus.client import Synchronizer, VersionRow
from trinity_bus.config import Settings
from trinity_bus.view import MeshState, follow
from workers.cli.connection import on_mesh
from workers.cli.console import console, folding_table, say, show

app = typer.Typer()
out = console()

_NEWEST: Final = "latest"
_CHECKSUM_CHARS: Final = 12


_AskedBy = Annotated[
    str, typer.Option("--as", metavar="NAME", help="Your name, for the log.", show_default="this machine's user")
]


@app.callback(invoke_without_command=True)
def versions(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print every version as a JSON object on one line.")] = False,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="How many of the newest to list.")] = 20,
) -> None:
    """List the published versions: step, loss, reward, checksum, checkpoint, and the explorers that serve each now."""
    if context.invoked_subcommand is not None:
        return

    async def listed(bus: Bus) -> None:
        state = MeshState(Settings().mesh.model)
        async with follow(bus, topics=[VERSION_HISTORY, MODEL_VERSIONS, *EVENTS], state=state) as follower:
            rows = follower.state.versions()
        show(out, table(rows, last), map(_plain, rows), as_json=as_json)

    on_mesh("versions", listed)


@app.command()
def publish(
    version: Annotated[str, typer.Argument(metavar="VERSION", help=f"Its number, or {_NEWEST} for the newest.")],
    timeout_s: Annotated[float, typer.Option("--timeout", help="How long to wait for the explorers, s.")] = 60.0,
    asked_by: _AskedBy = "",
) -> None:
    """Make every explorer serve an older version, and no newer one until `publish latest`.

    Training continues with the batches for which the version is fresh enough; the others wait. Exit code 1
    if the version is not available, or not every explorer serves it in time.
    """
    if version != _NEWEST and not version.isdecimal():
        raise typer.BadParameter(f"{version!r} is neither a number nor {_NEWEST!r}")
    wanted = None if version == _NEWEST else int(version)
    who = _person(asked_by)

    async def choose(synchronizer: Synchronizer) -> str:
        cost = await synchronizer.publish_version(wanted, asked_by=who)
        if cost:
            say(cost, stderr=True)
        if wanted is None:
            return "The newest version is served as soon as it may be."
        try:
            serving = await synchronizer.wait_served(wanted, timeout_s=timeout_s)
        except TimeoutError:
            raise TimeoutError(
                f"Not every explorer serves version {wanted} after {timeout_s:g} s; trinity-bus versions tells who."
            ) from None
        return f"Version {wanted} is served by {', '.join(serving)}."

    _command(choose)


@app.command()
def rollback(
    to: Annotated[int, typer.Option(min=0, metavar="VERSION", help="The version to continue from.")],
    reason: Annotated[str, typer.Option("--reason", "-r", help="The reason, for the lineage of every later version.")],
    discard: Annotated[bool, typer.Option("--discard", help="Confirm that newer versions are discarded.")] = False,
    asked_by: _AskedBy = "",
) -> None:
    """Roll back to an older version: explorers return to it at once, and training continues from it.

    Newer versions are discarded, and the batches that they were trained on are skipped. To serve an older version
    while training continues, use `publish`. Exit code 1 if the version is not available.
    """
    if not discard:
        raise typer.BadParameter("it discards what is newer for good: say --discard, or use `versions publish`")
    who = _person(asked_by)

    async def go_back(synchronizer: Synchronizer) -> str:
        cost = await synchronizer.roll_back(to, reason=reason, asked_by=who)
        return f"Training goes on from version {to}" + (f"; {cost}." if cost else ".")

    _command(go_back)


def _command(action: Callable[[Synchronizer], Awaitable[str]]) -> None:
    # Say what came of a command to the coordinator; exit code 1 if it is refused, or takes too long
    async def run(bus: Bus) -> None:
        async with Synchronizer(bus=bus, name="versions") as synchronizer:
            try:
                line = await action(synchronizer)
            except (ValueError, TimeoutError) as error:
                say(str(error), stderr=True)
                raise typer.Exit(1) from None
        say(line, stderr=True)

    on_mesh("versions", run)


def _person(said: str) -> str | None:
    # Who asks; None where the user of this process has no name, as in some containers
    if len(said) > MAX_PERSON_CHARS:
        raise typer.BadParameter(f"--as: a name has {MAX_PERSON_CHARS} characters at most, not {len(said)}")
    if said:
        return said
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()[:MAX_PERSON_CHARS] or None
    return None


def table(rows: list[VersionRow], last: int) -> Table:
    """Return the newest versions, and those that are served, the newest last."""
    shown = folding_table("version", "step", "published", "loss", "reward", "checksum", "checkpoint", "served by")
    newest = {row.record.version for row in rows[-last:]}
    for row in rows:
        if row.record.version not in newest and not row.served_by and not row.announced:
            continue
        record = row.record
        mark = " pinned" if row.pinned else " *" if row.announced else ""
        mark += f", asked for by {printable(row.asked_by)}" if row.asked_by else ""
        shown.add_row(
            Text(f"{record.version}{mark}"),
            str(record.step),
            datetime.fromtimestamp(row.published_at).strftime("%m-%d %H:%M:%S"),
            _figure(record.metrics.get("loss")),
            _figure(record.metrics.get("reward_mean")),
            Text(printable(record.checksum[:_CHECKSUM_CHARS])),
            Text(printable(record.checkpoint or "")),
            Text(", ".join(row.served_by)),
        )
    shown.caption = "* to be served" if rows else "no version was published yet"
    return shown


def _plain(row: VersionRow) -> dict[str, Any]:
    return {
        **row.record.model_dump(mode="json"),
        "published_at": row.published_at,
        "age_s": max(0.0, time.time() - row.published_at),
        "served_by": row.served_by,
        "announced": row.announced,
        "pinned": row.pinned,
        "asked_by": row.asked_by,
    }


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
