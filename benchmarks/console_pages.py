"""What open pages of the console cost the mesh that they look at: its tokens per second with them, over without.

The demo runs, console and all, as fast as it can. Readers stand in for browsers: each has a page open, is told that
there is something new, and asks for the page again, as ``console.js`` does. They come and go by turns, within the same
run; first come, then gone, and the other way round.

On a machine that others use too a difference of two percent is lost in tokens per second. So the processor time of the
console is measured beside, with its readers and without: that is what they can take from a mesh on the same machine.
"""

import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp
import psutil

from benchmarks._options import parser
from benchmarks._report import Row, less, report
from trinity_bus.bus import Bus
from trinity_bus.config import CONFIG_VARIABLE, Settings
from trinity_bus.view import follow

PAGES: Final = 50
PATHS: Final = ("/", "/batches", "/steps", "/samples", "/versions")
FIRST_STEPS: Final = 5
"""Waited for: the first ones are slow."""
_LIMIT_S: Final = 540


class Readers:
    def __init__(self, session: aiohttp.ClientSession, console: str) -> None:
        self._session = session
        self._console = console
        self._open: list[asyncio.Task[None]] = []
        self.waited: list[float] = []
        self.sizes: list[int] = []

    def come(self) -> None:
        self._open = [asyncio.create_task(self._read(PATHS[i % len(PATHS)])) for i in range(PAGES)]

    async def go(self) -> None:
        for task in self._open:
            task.cancel()
        ended = await asyncio.gather(*self._open, return_exceptions=True)
        self._open = []
        for error in ended:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error

    async def _read(self, path: str) -> None:
        async with self._session.get(f"{self._console}/live") as stream:
            async for line in stream.content:
                if not line.startswith(b"event: changed"):
                    continue
                began = time.perf_counter()
                async with self._session.get(self._console + path, headers={"X-Part": "1"}) as answer:
                    self.sizes.append(len(await answer.read()))
                self.waited.append((time.perf_counter() - began) * 1000)


def consoles_of(demo: int) -> list[psutil.Process]:
    children = psutil.Process(demo).children(recursive=True)
    return [one for one in children if one.cmdline()[-2:] == ["run", "console"]]


def spent_s(*processes: psutil.Process) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


async def measured(run_dir: Path, output: Path, demo: subprocess.Popen[bytes], turns: int, turn_s: float) -> list[Row]:
    async def until(holds: Callable[[], bool]) -> None:
        while not holds():
            if demo.poll() is not None:
                raise RuntimeError(f"the demo has ended, see {run_dir / 'logs'}")
            await asyncio.sleep(0.2)

    def address() -> str:
        found = re.search(r"http://[\d.:]+(?=/)", output.read_text())
        return "" if found is None else found[0]

    await until(lambda: address() != "")
    os.environ[CONFIG_VARIABLE] = str(run_dir / "mesh.toml")
    settings = Settings()
    # No limit on connections: each page has two.
    async with (
        Bus(settings.kafka, client_id="bench") as bus,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()) as session,
    ):
        await bus.ensure_topics()
        async with follow(bus) as follower:
            await until(lambda: len(follower.state.steps) >= FIRST_STEPS)
            consoles, readers = consoles_of(demo.pid), Readers(session, address())
            tokens: dict[bool, list[float]] = {True: [], False: []}
            seconds: dict[bool, list[float]] = {True: [], False: []}
            own = psutil.Process()
            own_s = 0.0
            for turn in range(2 * turns):
                with_pages = turn % 4 in {1, 2}
                if with_pages:
                    readers.come()
                before = follower.state.response_tokens, spent_s(*consoles), time.monotonic(), spent_s(own)
                await asyncio.sleep(turn_s)
                took = time.monotonic() - before[2]
                tokens[with_pages].append((follower.state.response_tokens - before[0]) / took)
                seconds[with_pages].append((spent_s(*consoles) - before[1]) / took)
                if with_pages:
                    own_s += (spent_s(own) - before[3]) / took / turns
                    await readers.go()
    paces = {kind: statistics.mean(told) for kind, told in tokens.items()}
    costs = {kind: statistics.mean(told) * 100 for kind, told in seconds.items()}
    name = f"{PAGES} pages"
    return [
        Row(f"{name}: tokens/s with over without", paces[True] / paces[False], "x", goal=0.98),
        Row("tokens/s without", paces[False], "tokens/s"),
        less("the console without", costs[False], "% of one core"),
        less(f"the console with {name}", costs[True], "% of one core"),
        less(f"{name}", costs[True] - costs[False], "% of one core"),
        less(f"{name}, of all cores", (costs[True] - costs[False]) / (os.cpu_count() or 1), "%", 2),
        less("readers, which browsers are elsewhere", own_s * 100, "% of one core"),
        Row("answers", len(readers.waited) / turns / turn_s, "a second"),
        less("an answer, median", statistics.median(readers.waited), "ms"),
        less("an answer, mean", statistics.mean(readers.sizes) / 1024, "KiB"),
    ]


def main() -> None:
    options = parser(__doc__).parse_args()
    turns, turn_s = (1, 5.0) if options.short else (4, 12.0)
    with tempfile.TemporaryDirectory(prefix="trinity-bus-bench-") as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "workers.cli.app", "demo", "--all-steps", "--steps", "10000"]
        command += ["--limit", str(_LIMIT_S), "--run-dir", str(run_dir)]
        output = Path(folder) / "demo.log"
        with output.open("wb") as log:
            demo = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - our own command line
            try:
                rows = asyncio.run(measured(run_dir, output, demo, turns, turn_s))
            finally:
                demo.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    demo.wait(60)
                demo.kill()
    report(
        "console_pages", f"{PAGES} pages of the console open at the demo, {turns} turns of {turn_s:g} s", rows, options
    )


if __name__ == "__main__":
    main()
