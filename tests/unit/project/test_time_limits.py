"""Every limit above a second is measured by ``trinity_bus.awake``: a process that stood still has not waited."""

import ast
import re
from collections.abc import Iterator

from tests.unit.project.test_names import modules

CLOCKS = {
    "asyncio.get_running_loop().time",
    "asyncio.timeout",
    "asyncio.timeout_at",
    "asyncio.wait_for",
    "loop.time",
    "threading.Timer",
    "time.monotonic",
    "time.monotonic_ns",
}
"""What measures by a clock that runs on while the process does not."""
LIMITS = {"timeout", "sock_connect", "sock_read"}
"""Arguments that are limits of somebody else's."""
WAITS = {"call_later": 0, "join": 0, "settimeout": 0, "wait": 0, "wait_for": 1}
"""Methods that wait, and which argument is the limit."""
NAMED = re.compile(r"(_s|_S|_SLICE)\b|\b(left|limit|timeout|TIMEOUT)\b")
"""How what is a limit is called, among the arguments of such methods."""

ALLOWED = {
    "trinity_bus/awake.py": "it is made of these",
    "trinity_bus/broker/embedded.py: self._child.wait": "a process of ours: it counts by this clock",
    "trinity_bus/broker/formatting.py: tool.wait": "likewise",
    "trinity_bus/runners/fork_server.py: self._child.wait": "likewise",
    "trinity_bus/runtime/process.py: self.wait": "likewise",
    "trinity_bus/runtime/supervisor.py: service.child.wait": "likewise",
    "trinity_bus/training/ranks/followers.py: self.child.wait": "likewise",
    "trinity_bus/weights/link.py: self.wait": "likewise",
    "trinity_bus/weights/listener.py: self._changed.wait": "in a loop until a time of this clock",
    "trinity_bus/weights/channel.py: self._connection.settimeout": "slices of such a wait, or what is left of it",
    "trinity_bus/weights/link.py: work.wait": "likewise",
    "trinity_bus/gateway/explorers.py: aiohttp.ClientTimeout": "kernels connect; and another explorer is asked then",
    "trinity_bus/gateway/explorers.py: aiohttp.ClientSession": "likewise",
    "trinity_bus/inference/server/client.py: aiohttp.ClientTimeout": "kernels connect, whoever stands still",
    "trinity_bus/inference/server/client.py: aiohttp.ClientSession": "likewise",
    "trinity_bus/training/ranks/launch.py: socket.create_connection": "likewise",
    "trinity_bus/weights/channel.py: socket.create_connection": "likewise",
    "trinity_bus/weights/listener.py: connection.settimeout": "of a stranger, who comes again",
    "trinity_bus/rollout/scores.py: aiohttp.ClientSession": "it has none",
    "trinity_bus/rollout/openenv.py: aiohttp.ClientSession": "likewise",
    "trinity_bus/training/ranks/launch.py: TCPStore": "torch measures it: ten minutes, and the trainer begins anew",
    "trinity_bus/training/megatron/parallel.py: dist.init_process_group": "likewise",
    "workers/trainer/launched_ranks.py: rendezvous": "torch measures it, before anything is trained",
    "trinity_bus/broker/jars.py: MavenContext": "of a download, which can be begun again",
    "trinity_bus/console/index/files.py: sqlite3.connect": "of a lock that is asked for again",
    "trinity_bus/runners/fork_server.py: subprocess.run": "of a look before anything runs",
    "trinity_bus/telemetry/jaeger.py: urllib.request.urlopen": "of a question that a person asks",
    "workers/doctor/checks.py: subprocess.run": "likewise",
}


def _constants(module: ast.Module) -> dict[str, float]:
    found: dict[str, float] = {}
    for node in module.body:
        names = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
            found |= {name.id: float(value.value) for name in names if isinstance(name, ast.Name)}
    return found


def limits(module: ast.Module) -> Iterator[str]:
    """What measures a limit in a module, but for those of a second at most."""
    constants = _constants(module)
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in CLOCKS:
            yield ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and node.module in {"asyncio", "threading", "time"}:
            yield from (what for alias in node.names if (what := f"{node.module}.{alias.name}") in CLOCKS)
        if not isinstance(node, ast.Call):
            continue
        given = [one.value for one in node.keywords if one.arg in LIMITS]
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        place = WAITS.get(name)
        if place is not None and len(node.args) > place and not ast.unparse(node.func).startswith(("awake.", "'")):
            limit = node.args[place]
            if isinstance(limit, ast.Constant) or NAMED.search(ast.unparse(limit)):
                given.append(limit)
        for limit in given:
            seconds = limit.value if isinstance(limit, ast.Constant) else constants.get(ast.unparse(limit), 1e9)
            if isinstance(seconds, int | float) and seconds > 1:
                yield ast.unparse(node.func)


def test_nothing_else_measures_a_limit_and_what_does_is_found() -> None:
    found = {path: sorted(set(limits(module))) for path, module in modules().items()}
    places = {f"{path}: {what}" for path, of_path in found.items() for what in of_path}
    allowed = {place for place in places if place in ALLOWED or place.partition(": ")[0] in ALLOWED}
    assert sorted(places - allowed) == []
    used = allowed | {place.partition(": ")[0] for place in allowed}
    assert sorted(ALLOWED.keys() - used) == []
    text = """
import asyncio, time
from time import monotonic
LONG_S = 5.0
SHORT_S = 0.5
async def f(task, event, thread, limit_s):
    async with asyncio.timeout(3):
        await asyncio.wait([task], timeout=limit_s)
        await asyncio.wait([task], timeout=SHORT_S)
        await asyncio.wait([task])
    event.wait(LONG_S)
    event.wait(SHORT_S)
    thread.join(limit_s)
    ", ".join(task)
    return time.monotonic() + 3
"""
    told = "asyncio.timeout asyncio.wait event.wait thread.join time.monotonic time.monotonic"
    assert sorted(limits(ast.parse(text))) == told.split()
