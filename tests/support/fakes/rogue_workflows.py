"""Workflows that do what none should, and some that only tests need. Loaded as a user's are: by a setting."""

import asyncio
import contextlib
import ctypes
import dataclasses
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from opentelemetry import trace

from schemas.experience import Rollout
from schemas.sampling import Sampling
from schemas.task import Task
from trinity_bus.rollout.conversations import Conversation, ToolWorkflow
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.single_runs import SingleRunWorkflow
from trinity_bus.rollout.threads import within
from trinity_bus.rollout.tools import ToolTimeoutError
from trinity_bus.rollout.workflow import PartialRunsError, RolloutContext
from trinity_bus.sandbox import Sandbox

CHUNK = 8 << 20


def rogue(name: str, *, single: bool = False) -> Callable[[Any], Any]:
    """Function decorator: what it does with a task is a workflow, or one run of it, whose number it is given."""
    bases, method = ((SingleRunWorkflow,), "run_once") if single else ((), "run")

    def add(run: Any) -> Any:
        register(name)(type(run.__name__, bases, {method: lambda _, *asked: run(*asked)}))
        return run

    return add


def one(reward: float = 1.0) -> Rollout:
    return Rollout(prompt_token_ids=[1], response_token_ids=[2], logprobs=[-0.5], reward=reward)


POISON: dict[str, dict[str, Any]] = {
    "infinite reward": {"reward": float("inf")},
    "reward beyond a float32": {"reward": 1e39},
    "empty prompt": {"prompt_token_ids": []},
    "token beyond the vocabulary": {"response_token_ids": [0x110000]},
    "negative token": {"response_token_ids": [-1]},
    "nan logprob": {"logprobs": [float("nan")]},
    "infinite logprob": {"logprobs": [float("inf")]},
    "positive logprob": {"logprobs": [0.5]},
}


@rogue("poison")
async def poison(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Gives one good sample, and one with the flaw that its prompt names."""
    return [one(), dataclasses.replace(one(), **POISON[str(task.prompt)])]


@rogue("chatty")
async def chatter(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Measures so much that no record can tell it."""
    metrics = {f"a_rather_long_name_of_a_metric_that_matters/{i}": float(i) for i in range(int(str(task.prompt)))}
    return [dataclasses.replace(one(), metrics=metrics) for _ in range(ctx.repeat_times)]


@rogue("block")
async def block(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Never gives the event loop back; says in a file that it has it."""
    Path(str(task.prompt)).write_text("blocked")
    while True:
        time.sleep(0.01)  # noqa: ASYNC251


@rogue("exit")
async def end_process(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Ends its process, and leaves one of its own behind that has left its session."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(str(task.prompt)).write_text(str(child.pid))
    os._exit(3)


@rogue("segfault")
async def segfault(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Reads where nothing is."""
    ctypes.string_at(0)
    return []


@rogue("eat")
async def eat(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Takes memory without end."""
    kept = []
    while True:
        kept.append(b"x" * CHUNK)
        await asyncio.sleep(0.005)


@rogue("ignore")
async def ignore(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Does not care that it is cancelled."""
    ctx.set_state(turn=1)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            continue


@rogue("cling")
async def cling(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Waits for a thread that hangs no longer than it may."""
    return await within(0.05, ToolTimeoutError("it hangs"), time.sleep, 600)


@rogue("leave")
async def leave(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Asks the whole process to end."""
    sys.exit("enough")


@rogue("babble")
async def babble(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Writes into the socket to the explorer."""
    for number in range(3, 64):
        # Whatever is open, and is no socket, is spared.
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, b"\xff" * 64)
    await asyncio.sleep(600)
    return []


@rogue("tell")
async def tell(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Says something of itself, then asks the engine."""
    ctx.set_state(turn=7, note="halfway")
    with trace.get_tracer(__name__).start_as_current_span("think"):
        await ctx.generate([1, 2, 3])
    return [one()] * ctx.repeat_times


@rogue("surrogate")
async def put_surrogate(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Puts half a character, which no record can hold, where its prompt says."""
    half = "half of it: \ud83d"
    match task.prompt:
        case "error":
            raise ValueError(half)
        case "partial":
            raise PartialRunsError([one()], ValueError(half))
        case "metric":
            return [dataclasses.replace(one(), metrics={half: 1.0})]
        case _:
            return [dataclasses.replace(one(), finish_reason=half)]


@rogue("last-words")
async def last_words(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Says something of itself, and is done before anybody asks."""
    ctx.set_state(turn=1)
    await asyncio.sleep(0)
    ctx.set_state(turn=2)
    return [one()]


@rogue("turn-and-fail", single=True)
async def turn_and_fail(task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
    """Ends a turn, and breaks off before that can be durable."""
    await ctx.generate([1, 2, 3])
    await ctx.end_turn()
    await asyncio.sleep(0)
    ctx.set_state(turn=1)
    raise ValueError("broke off")


@rogue("steps", single=True)
async def steps(task: Task, ctx: RolloutContext, run_id: int) -> list[Rollout]:
    """Two experiences of each run, and the engine is asked for none."""
    return [dataclasses.replace(one(), metrics={"step": float(step)}) for step in range(2)]


@rogue("converse", single=True)
async def converse(task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
    """Four turns: the model speaks, and a tool notes it in the file that the prompt names."""
    path = Path(task.prompt or "")

    async def note(line: str) -> int:
        path.write_text(f"{path.read_text() if path.exists() else ''}{line}\n")
        return len(line)

    prompt, response, logprobs = [1], list[int](), list[float]()
    for _ in range(4):
        (said,) = await ctx.generate([*prompt, *response])
        response += said.token_ids
        logprobs += said.logprobs
        await ctx.call("note", note, ctx.tokenizer.decode(said.token_ids))
        await ctx.end_turn()
    return Rollout(
        prompt_token_ids=prompt, response_token_ids=response, logprobs=logprobs, reward=1.0, versions=[(0, 0)]
    )


async def note(path: str, line: str, box: Sandbox) -> int:
    """Note a line in a file, and in the sandbox; who notes "two" waits for a file with the suffix ``.go`` beside it."""
    await asyncio.to_thread(_append, box.folder / "noted", line)
    await asyncio.to_thread(_append, Path(path), line)
    while line == "two" and not Path(path).with_suffix(".go").exists():  # noqa: ASYNC110 (another process makes it)
        await asyncio.sleep(0.01)
    return len(line)


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


@register("notes")
class Notes(ToolWorkflow):
    """A conversation with one tool; the reward is the lines in its sandbox."""

    tools: ClassVar = (note,)

    async def reward(self, task: Task, conversation: Conversation) -> float:
        assert conversation.sandbox is not None
        return float(len((await conversation.sandbox.read_file("noted")).split()))


@rogue("spy")
async def spy(task: Task, ctx: RolloutContext) -> list[Rollout]:
    """Looks for what the explorer keeps to itself, and tells all that it has found as its error.

    The prompt is the explorer's process id, then the marker of its secret, backwards: the marker itself must not get
    into the explorer's memory by this way.
    """
    pid, reverse = str(task.prompt).split()
    marker = reverse[::-1].encode()
    found: dict[str, object] = {
        "user": os.getuid(),
        "environment": sorted(name for name in os.environ if marker in os.environb[name.encode()]),
        "variables": sorted(os.environ),
        "descriptors": _descriptors(),
    }
    found["explorer"] = {what: _attempt(what, int(pid), marker) for what in ("environ", "mem", "fd", "root", "ptrace")}
    # The fork server, and the guard between it and the explorer: they may be looked into, and hold nothing.
    process = os.getppid()
    while process != int(pid):
        found[f"between: {process}"] = {what: _attempt(what, process, marker) for what in ("environ", "mem")}
        process = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
    raise RuntimeError(json.dumps(found))


def _descriptors() -> list[str]:
    paths = [Path(f"/proc/self/fd/{number}") for number in range(256)]
    return sorted(str(path.readlink()) for path in paths if path.is_symlink())


def _attempt(what: str, process: int, marker: bytes) -> str:
    """Whether the marker was found in one place; the error where the place could not be looked at."""
    try:
        match what:
            case "environ":
                found = marker in Path(f"/proc/{process}/environ").read_bytes()
            case "mem":
                found = _in_memory(process, marker)
            case "fd":
                found = any(marker in content for content in _open_files(process))
            case "root":
                found = bool(os.listdir(f"/proc/{process}/root/"))  # noqa: PTH208
            case _:
                found = _attach(process)
    except OSError as error:
        return str(error.strerror)
    return "found" if found else "not there"


def _attach(process: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    attach, detach = 16, 17
    if libc.ptrace(attach, process, None, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.waitpid(process, 0)
    libc.ptrace(detach, process, None, None)
    return True


def _open_files(process: int) -> Iterator[bytes]:
    """What is in the files that another process has open; pipes would wait."""
    for number in os.listdir(f"/proc/{process}/fd"):  # noqa: PTH208
        path = Path(f"/proc/{process}/fd/{number}")
        with contextlib.suppress(OSError):
            if path.is_file():
                yield path.read_bytes()


def _in_memory(process: int, marker: bytes) -> bool:
    with Path(f"/proc/{process}/mem").open("rb") as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            area, access = line.split()[:2]
            start, end = (int(part, 16) for part in area.split("-"))
            if not access.startswith("rw"):
                continue
            with contextlib.suppress(OSError, ValueError, OverflowError):
                memory.seek(start)
                if marker in memory.read(end - start):
                    return True
    return False


@rogue("consult", single=True)
async def consult(task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
    """Asks the pool that its prompt names for all that can be asked of one."""
    pool = str(task.prompt)
    (said,) = await ctx.generate([1, 2])
    (other,) = await ctx.generate([1, 2, 3], Sampling(max_tokens=2), pool=pool)
    verdict = await ctx.chat([{"role": "user", "content": "Good?"}], pool=pool)
    return Rollout(
        prompt_token_ids=[1, 2],
        response_token_ids=said.token_ids,
        logprobs=said.logprobs,
        reward=float(len(verdict)),
        metrics={"drawn": float(len(other.token_ids))},
        versions=said.versions,
        teacher_logprobs=await ctx.score([1, 2], said.token_ids, pool=pool),
    )
