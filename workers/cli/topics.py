"""``trinity-bus topics`` and ``dead-letters``: the topics of the mesh, and the records that were refused."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from schemas.errors import printable
from schemas.topic import Topic
from schemas.topics import ALL_DEAD_LETTERS, TOPICS
from trinity_bus.bus import Bus, Received
from trinity_bus.bus.client.connection import METADATA_S
from trinity_bus.bus.partitioning import SETTLE_S
from trinity_bus.bus.read.received import refusal_of
from workers.cli.connection import mesh_command
from workers.cli.console import console, folding_table, say

app = typer.Typer()
topics = typer.Typer(no_args_is_help=True, help="List, create and grow the topics.")
app.add_typer(topics, name="topics")
out = console()

_SHOWN_BYTES: Final = 200  # Of a dead letter
_WAIT_S: Final = 1.0
_CLIENT_ID: Final = "trinity-bus-topics"
_NAMES = {topic.name: topic for topic in TOPICS}


def _known(name: str) -> Topic:
    if name not in _NAMES:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(_NAMES)}")
    return _NAMES[name]


@topics.command("list")
@mesh_command(_CLIENT_ID, absent=True)
async def list_topics(bus: Bus) -> None:
    """List the topics and their sizes."""
    present = await bus.present()
    table = folding_table("topic", "partitions", "kept", "offsets")
    for topic in TOPICS:
        name = topic.full_name(bus.settings.namespace)
        partitions = topic.partitions
        if topic in present:
            first, end = await bus.beginning_offsets(topic), await bus.end_offsets(topic)
            # Not a number of records: transactions and compaction leave gaps.
            partitions = len(end)
            offsets = f"{sum(end.values()) - sum(first.values()):,}"
        else:
            offsets = "absent"
        kept = "compacted" if topic.cleanup == "compact" else "by time" if topic.keep_ms is None else "by position"
        table.add_row(name, str(partitions), kept, offsets)
    out.print(table)


@topics.command()
@mesh_command(_CLIENT_ID, absent=True)
async def create(bus: Bus) -> None:
    """Create missing topics, and check the others."""
    await bus.ensure_topics()
    out.print(f"{len(TOPICS)} topics are there, in namespace {bus.settings.namespace}")


@topics.command()
@mesh_command(_CLIENT_ID, absent=True)
async def grow(
    bus: Bus,
    topic: Annotated[Topic, typer.Argument(metavar="NAME", parser=_known, help="The topic.")],
    partitions: Annotated[int, typer.Argument(min=1, help="The new number of partitions.")],
) -> None:
    """Add partitions to a topic, also while the mesh runs. Only for topics whose records fit any partition."""
    had = await bus.grow(topic, partitions)
    out.print(
        f"{topic.full_name(bus.settings.namespace)} had {had} partitions, and has {partitions}: services use them "
        f"within {METADATA_S + SETTLE_S:g} s"
    )


def fields_of(received: Received[Any]) -> dict[str, str]:
    """Return a dead letter as flat text: when, why, where from, and the beginning of what it was.

    Everything in it may come from anyone, so what could steer a terminal is escaped.
    """
    found = refusal_of(received)
    cut = received.raw[:_SHOWN_BYTES]
    letter = {
        "time": datetime.fromtimestamp(received.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "reason": found.reason,
        "detail": found.detail,
        "source": found.source,
        "key": received.key or "",
        "value": cut.decode("utf-8", "backslashreplace") + ("..." if len(received.raw) > len(cut) else ""),
        "size": found.size or str(len(received.raw)),
    }
    return {name: printable(text) for name, text in letter.items()}


@app.command("dead-letters")
@mesh_command("dead-letters")
async def dead_letters(
    bus: Bus,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new ones until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object on each line.")] = False,
) -> None:
    """List the refused records, with the reason."""
    if as_json or follow:
        async for letter in _letters(bus, follow=follow):
            if as_json:
                typer.echo(json.dumps(letter))
            else:
                say("{time} {reason} {source} key={key!r}: {detail}".format(**letter))
        return
    table = folding_table("time", "reason", "source", "key", "detail")
    async for letter in _letters(bus, follow=False):
        table.add_row(*(Text(letter[name]) for name in ("time", "reason", "source", "key", "detail")))
    out.print(table if table.row_count else "No dead letters.")


async def _letters(bus: Bus, *, follow: bool) -> AsyncIterator[dict[str, str]]:
    async with bus.reader(*ALL_DEAD_LETTERS, start="beginning") as reader:
        async for received in reader.replay():
            yield fields_of(received)
        while follow:
            for received in await reader.batch(_WAIT_S):
                yield fields_of(received)
