"""``trinity-bus topics``: the topics of the mesh."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from schemas.topic import Topic
from schemas.topics import TOPICS
from trinity_bus.bus import Bus
from trinity_bus.bus.client.connection import METADATA_S, administrator, kafka_errors
from trinity_bus.bus.topics.creation import config_of
from trinity_bus.bus.topics.growth import SETTLE_S
from trinity_bus.config import KafkaSettings
from workers.cli.connection import connected_settings
from workers.cli.console import console, folding_table

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List, create and describe the topics.")
out = console()

_CLIENT_ID = "trinity-bus-topics"
_NAMES = {topic.name: topic for topic in TOPICS}


def _with_bus(action: Callable[[Bus], Awaitable[None]]) -> None:
    kafka = connected_settings().kafka

    async def connected() -> None:
        async with Bus(kafka, client_id=_CLIENT_ID) as bus:
            await action(bus)

    asyncio.run(connected())


async def _present(kafka: KafkaSettings) -> set[str]:
    async with administrator(kafka, _CLIENT_ID) as admin:
        with kafka_errors("list the topics"):
            return set(await admin.list_topics())


def _known(name: str) -> Topic:
    topic = _NAMES.get(name)
    if topic is None:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(_NAMES)}")
    return topic


@app.command("list")
def list_topics() -> None:
    """List the topics and their sizes."""

    async def show(bus: Bus) -> None:
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

    _with_bus(show)


@app.command()
def create() -> None:
    """Create missing topics, and check the others."""

    async def ensure(bus: Bus) -> None:
        await bus.ensure_topics()
        out.print(f"{len(TOPICS)} topics are there, in namespace {bus.settings.namespace}")

    _with_bus(ensure)


@app.command()
def grow(
    topic_name: Annotated[str, typer.Argument(metavar="NAME", help="The topic.")],
    partitions: Annotated[int, typer.Argument(min=1, help="The new number of partitions.")],
) -> None:
    """Add partitions to a topic, also while the mesh runs. Only for topics whose records fit any partition."""
    topic = _known(topic_name)

    async def more(bus: Bus) -> None:
        had = await bus.grow(topic, partitions)
        out.print(
            f"{topic.full_name(bus.settings.namespace)} had {had} partitions, and has {partitions}: services use them "
            f"within {METADATA_S + SETTLE_S:g} s"
        )

    _with_bus(more)


@app.command()
def describe(topic_name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(_NAMES)}.")]) -> None:
    """Describe one topic: its purpose, configuration and partitions."""
    topic = _known(topic_name)

    async def show(bus: Bus) -> None:
        name = topic.full_name(bus.settings.namespace)
        out.print(f"[bold]{name}[/]  {topic.description}")
        facts = folding_table("", "", show_header=False, box=None)
        facts.add_row("key", topic.key)
        facts.add_row("records", ", ".join(record.__name__ for record in topic.records) or "raw bytes")
        facts.add_row("written by", ", ".join(topic.writers))
        facts.add_row("read by", ", ".join(topic.readers))
        for setting, value in config_of(topic, bus.settings).items():
            facts.add_row(setting, value)
        out.print(facts)
        if name not in await _present(bus.settings):
            out.print("It does not exist yet: trinity-bus topics create")
            return
        first, end = await bus.beginning_offsets(topic), await bus.end_offsets(topic)
        partitions = folding_table("partition", "first offset", "end offset")
        for number in sorted(end):
            partitions.add_row(str(number), f"{first[number]:,}", f"{end[number]:,}")
        out.print(partitions)

    _with_bus(show)
