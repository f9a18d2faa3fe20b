"""``trinity-bus positions`` and ``upgrade``: what an operator decides of the coordinator's state.

How far it has read, where it continues if the log does not reach there, and from when it writes a newer format.
"""

from typing import Annotated, Final, Literal

import typer

from schemas import FinalizeUpgrade
from schemas.topics import COORDINATOR_INPUTS, COORDINATOR_STATE, OPERATOR_COMMANDS
from trinity_bus.bus import Bus
from trinity_bus.bus.read.offsets import readable
from trinity_bus.client.connection import Connected
from trinity_bus.coordination.state.codec import NEWEST_LEVEL
from trinity_bus.errors import BusError
from workers.cli.connection import mesh_command
from workers.cli.console import console, folding_table, say
from workers.coordinator.input_reader import still_read
from workers.coordinator.outputs import INPUTS_KEY, Changelog, Positions, pack_positions
from workers.coordinator.standby import TRANSACTIONAL_ID

app = typer.Typer()
positions = typer.Typer(no_args_is_help=True, help="Show and set the coordinator's positions in its inputs.")
upgrade = typer.Typer(no_args_is_help=True, help="Finalize an upgrade.")
app.add_typer(positions, name="positions")
app.add_typer(upgrade, name="upgrade")
out = console()

_TASKS: Final = "tasks"


@positions.command()
@mesh_command("positions")
async def show(bus: Bus) -> None:
    """List the position in each input, and the range of the log."""
    read = await _positions(bus)
    table = folding_table("topic", "partition", "begins", "read next", "ends", "")
    for topic in COORDINATOR_INPUTS:
        begins, ends = await bus.beginning_offsets(topic), await bus.end_offsets(topic)
        for partition, end in sorted(ends.items()):
            position = read.get((topic.name, partition), begins[partition])
            said = "beyond the end" if position > end else "deleted" if position < begins[partition] else ""
            numbers = (str(number) for number in (partition, begins[partition], position, end))
            table.add_row(topic.name, *numbers, said)
    out.print(table)


@positions.command()
@mesh_command("positions")
async def resolve(
    bus: Bus,
    tasks: Annotated[
        Literal["beginning", "end"],
        typer.Option(
            help="Where to continue in partitions that end before the position: `beginning` may repeat tasks "
            "that are no longer remembered, `end` skips unread ones.",
        ),
    ],
) -> None:
    """Decide where the coordinator continues if its position is beyond the end of the log."""
    # As a coordinator: the one that waits is fenced, and whatever it had open is settled.
    async with bus.producer(transactional_id=TRANSACTIONAL_ID) as producer:
        found = await readable(bus, COORDINATOR_INPUTS, await _positions(bus))
        if not found.beyond:
            raise BusError("no position lies beyond the end of the log: there is nothing to decide")
        chosen = dict(found.positions)
        for one in found.beyond:
            at_begin = one.topic == _TASKS and tasks == "beginning"
            chosen[one.topic, one.partition] = one.begin if at_begin else one.end
        async with producer.transaction():
            await producer.send_raw(COORDINATOR_STATE, INPUTS_KEY, pack_positions(chosen), partition=0)
    for one in found.beyond:
        out.print(f"{one}: reading goes on at {chosen[one.topic, one.partition]}", highlight=False)


async def _positions(bus: Bus) -> Positions:
    changelog = Changelog()
    async with bus.reader(COORDINATOR_STATE, start="beginning") as reader:
        async for received in reader.replay():
            changelog.take(received)
    return still_read(changelog.positions)[0]


@upgrade.command()
@mesh_command("upgrade")
async def finalize(
    bus: Bus,
    level: Annotated[int, typer.Option(min=1, help="Level of the state. Unset: the newest one known.")] = NEWEST_LEVEL,
) -> None:
    """Let the coordinator write its state in the new version's format. Afterwards the version before cannot be used.

    Until then the old version's coordinators can take over, and new state that does not fit into the old format is lost
    when the coordinator restarts. Exit code 1 if the leading coordinator does not
    know the level.
    """
    async with Connected(None, bus, "upgrade", [OPERATOR_COMMANDS]) as client:
        reply = await client.connection.channel.ask(FinalizeUpgrade, level=level)
    say(reply.detail, stderr=True)
    if reply.error is not None:
        raise typer.Exit(1)
