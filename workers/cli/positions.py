"""``trinity-bus positions``: how far the coordinator has read, and where it goes on if the log does not reach there."""

from typing import Annotated, Final, Literal

import typer

from schemas.topics import COORDINATOR_INPUTS, COORDINATOR_STATE
from trinity_bus.bus import Bus
from trinity_bus.bus.read.offsets import readable
from trinity_bus.errors import BusError
from workers.cli.connection import on_mesh
from workers.cli.console import console, folding_table
from workers.coordinator.changelog import INPUTS_KEY, Changelog, Positions, pack_positions
from workers.coordinator.input_reader import still_read
from workers.coordinator.standby import TRANSACTIONAL_ID

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show and set the coordinator's positions in its inputs."
)
out = console()

type Where = Literal["beginning", "end"]

_TASKS: Final = "tasks"


@app.command()
def show() -> None:
    """List the position in each input, and the range of the log."""

    async def run(bus: Bus) -> None:
        positions = await _positions(bus)
        table = folding_table("topic", "partition", "begins", "read next", "ends", "")
        for topic in COORDINATOR_INPUTS:
            begins, ends = await bus.beginning_offsets(topic), await bus.end_offsets(topic)
            for partition, end in sorted(ends.items()):
                position = positions.get((topic.name, partition), begins[partition])
                said = "beyond the end" if position > end else "deleted" if position < begins[partition] else ""
                numbers = (str(number) for number in (partition, begins[partition], position, end))
                table.add_row(topic.name, *numbers, said)
        out.print(table)

    on_mesh("positions", run)


@app.command()
def resolve(
    tasks: Annotated[
        Where,
        typer.Option(
            "--tasks",
            help="Where to continue in partitions that end before the position: `beginning` may repeat tasks "
            "that are no longer remembered, `end` skips unread ones.",
        ),
    ],
) -> None:
    """Decide where the coordinator continues if its position is beyond the end of the log."""

    async def run(bus: Bus) -> None:
        # As a coordinator: the one that waits is fenced, and whatever it had open is settled.
        async with bus.producer(transactional_id=TRANSACTIONAL_ID) as producer:
            found = await readable(bus, COORDINATOR_INPUTS, await _positions(bus))
            if not found.beyond:
                raise BusError("no position lies beyond the end of the log: there is nothing to decide")
            positions = dict(found.positions)
            for one in found.beyond:
                at_begin = one.topic == _TASKS and tasks == "beginning"
                positions[one.topic, one.partition] = one.begin if at_begin else one.end
            async with producer.transaction():
                await producer.send_raw(COORDINATOR_STATE, INPUTS_KEY, pack_positions(positions), partition=0)
        for one in found.beyond:
            out.print(f"{one}: reading goes on at {positions[one.topic, one.partition]}", highlight=False)

    on_mesh("positions", run)


async def _positions(bus: Bus) -> Positions:
    changelog = Changelog()
    async with bus.reader(COORDINATOR_STATE, start="beginning") as reader:
        async for received in reader.replay():
            changelog.take(received)
    return still_read(changelog.positions)[0]
