"""``trinity-bus dead-letters``: records that could not be taken, and why."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from schemas.errors import printable
from schemas.topic import DLQ_DETAIL, DLQ_LAST_OFFSET, DLQ_OFFSET, DLQ_PARTITION, DLQ_REASON, DLQ_SIZE, DLQ_TOPIC
from schemas.topics import ALL_DEAD_LETTERS
from trinity_bus.bus import Bus, Received
from trinity_bus.bus.read.received import header
from workers.cli.connection import on_mesh
from workers.cli.console import console, folding_table

app = typer.Typer(add_completion=False, help="List the refused records, with the reason.")
out = console()

_SHOWN_BYTES: Final = 200
_WAIT_S: Final = 1.0


def describe(received: Received[Any]) -> dict[str, str]:
    """Return a dead letter as flat text: when, why, where from, and the beginning of what it was.

    Everything in it may come from anyone, so what could steer a terminal is escaped.
    """
    texts = {name: header(received.headers, name) or "?" for name in (DLQ_REASON, DLQ_DETAIL, DLQ_TOPIC)}
    place = [header(received.headers, name) or "?" for name in (DLQ_PARTITION, DLQ_OFFSET)]
    last, size = header(received.headers, DLQ_LAST_OFFSET), header(received.headers, DLQ_SIZE)
    cut = received.raw[:_SHOWN_BYTES]
    letter = {
        "time": datetime.fromtimestamp(received.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "reason": texts[DLQ_REASON],
        "detail": texts[DLQ_DETAIL],
        "source": f"{texts[DLQ_TOPIC]}/{place[0]}@{place[1]}" + ("" if last is None else f"-{last}"),
        "key": received.key or "",
        "value": cut.decode("utf-8", "backslashreplace") + ("..." if len(received.raw) > len(cut) else ""),
        "size": size or str(len(received.raw)),
    }
    return {name: printable(text) for name, text in letter.items()}


@app.command("dead-letters")
def dead_letters(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new ones until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object on each line.")] = False,
) -> None:
    """List the refused records, with the reason."""
    on_mesh("dead-letters", lambda bus: _show(bus, follow=follow, as_json=as_json))


async def _show(bus: Bus, *, follow: bool, as_json: bool) -> None:
    if as_json or follow:
        async for letter in _letters(bus, follow=follow):
            if as_json:
                typer.echo(json.dumps(letter))
            else:
                out.print(_line(letter), markup=False, highlight=False, soft_wrap=True)
        return
    table = folding_table("time", "reason", "source", "key", "detail")
    async for letter in _letters(bus, follow=False):
        table.add_row(*(Text(letter[name]) for name in ("time", "reason", "source", "key", "detail")))
    out.print(table if table.row_count else "No dead letters.")


def _line(letter: dict[str, str]) -> str:
    return f"{letter['time']} {letter['reason']} {letter['source']} key={letter['key']!r}: {letter['detail']}"


async def _letters(bus: Bus, *, follow: bool) -> AsyncIterator[dict[str, str]]:
    async with bus.reader(*ALL_DEAD_LETTERS, start="beginning") as reader:
        async for received in reader.replay():
            yield describe(received)
        while follow:
            for received in await reader.batch(_WAIT_S):
                yield describe(received)
