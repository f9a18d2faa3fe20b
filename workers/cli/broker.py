"""``trinity-bus broker``: the embedded Kafka broker on this machine."""

import asyncio
import json
import signal
import time
from typing import Annotated

import typer

from schemas.task import Task
from schemas.topics import TASKS
from trinity_bus import awake
from trinity_bus.broker import embedded
from trinity_bus.broker.embedded import EmbeddedBroker
from trinity_bus.broker.lock import KAFKA_VERSION
from trinity_bus.broker.node import prepare as prepare_broker
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.errors import BrokerError
from trinity_bus.runtime.service import interrupted_by
from trinity_bus.runtime.supervisor import Fate, Restarts
from workers.cli.console import console, folding_table

app = typer.Typer(no_args_is_help=True)
out = console()

_NOT_RUNNING = 3  # Exit code of ``status``, as init scripts have it


@app.command()
def start() -> None:
    """Start a broker in the background, unless it is running.

    Nothing watches it. If it dies, run this command again: it starts at the same address, and its clients continue.
    """
    state = embedded.start(Settings().broker)
    out.print(f"Apache Kafka {KAFKA_VERSION} serves on [bold]{state.bootstrap_servers}[/] (process {state.pid})")


@app.command()
def stop() -> None:
    """Stop the broker in the background. Its data stays."""
    stopped = embedded.stop(Settings().broker)
    out.print("Stopped." if stopped else "No broker runs.")


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show whether the broker runs, and its address. Exit code 3 if it does not."""
    found = embedded.status(Settings().broker)
    state = found.state
    facts: dict[str, str | int | bool | None] = {
        "running": found.running,
        "ready": found.ready,
        "bootstrap_servers": state.bootstrap_servers if state else None,
        "pid": state.pid if state else None,
        "background": state.background if state else None,
        "data_dir": str(found.folder.root),
        "data_bytes": sum(file.stat().st_size for file in found.folder.kafka.rglob("*.log")),
        "log": str(found.folder.server_log),
    }
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        table = folding_table("", "", show_header=False, box=None)
        for name, value in facts.items():
            table.add_row(name.replace("_", " "), "-" if value is None else str(value))
        out.print(table)
    if not found.running:
        raise typer.Exit(_NOT_RUNNING)


@app.command()
def run() -> None:
    """Run a broker in the foreground until Ctrl-C. If it dies, it is restarted at the same address."""
    restarts = Restarts()
    with interrupted_by(signal.SIGTERM), EmbeddedBroker(Settings().broker) as broker:
        while True:
            out.print(f"Apache Kafka {KAFKA_VERSION} serves on [bold]{broker.bootstrap_servers}[/]; Ctrl-C stops it")
            began = awake.now()
            verdict = restarts.ended(broker.wait() or 0, awake.now() - began)
            if verdict.fate is not Fate.AGAIN:
                raise BrokerError(f"Kafka {verdict.why}. Its log: {broker.folder.server_log}")
            out.print(f"Kafka {verdict.why}; it is started again. Its log: {broker.folder.server_log}")
            time.sleep(verdict.pause_s)
            broker.start()


@app.command()
def prepare() -> None:
    """Download and verify the broker's files, so that its start needs no network."""
    prepare_broker(Settings().broker, lambda servers: asyncio.run(_use(KafkaSettings(bootstrap_servers=servers))))


async def _use(kafka: KafkaSettings) -> None:
    # Do with a broker what services do with theirs: topics, a transaction, a reader at work
    async with Bus(kafka, client_id="prepare") as bus:
        await bus.ensure_topics()
        async with bus.reader(TASKS, start="beginning") as reader, bus.producer(transactional_id="prepare") as producer:
            async with producer.transaction():
                await producer.send(TASKS, "prepare", Task(task_id="prepare", workflow="sequence", prompt="copy"))
            while not await reader.batch(1.0):
                """Not there yet."""
