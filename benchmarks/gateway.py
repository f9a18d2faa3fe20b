"""The gateway: requests per second over those of a bare vLLM server, and what it adds to the latency of one request.

A vLLM server of OpenAI's API, and a gateway before an explorer, each with an engine of its own on the same model,
answer the same conversations: sixteen clients at once, then one client with one request after the other. Rounds, and
single requests, take turns, so that both see the same machine; who is not asked is idle. Clients are in this process.
"""

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import aiohttp
import uvloop

from benchmarks._cluster import cluster_to_measure, environment, make_topics, service
from benchmarks._options import parser
from benchmarks._report import Row, less, report
from benchmarks._tiny_model import SMALL, TINY, make_tiny_qwen3
from trinity_bus.config import KafkaSettings
from trinity_bus.runtime.ports import free_port
from trinity_bus.runtime.process import Child, tail

CLIENTS, REQUESTS, RESPONSE, ROUNDS = 16, 256, 32, 6
SHORT_REQUESTS = 32
LONE, SHORT_LONE, LONE_RESPONSE = 300, 10, 4
KEY = "a-key-of-the-benchmark"
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
MAX_LEN = 256
START_S = 240.0
NAMES = ("bare", "gateway")


@contextlib.contextmanager
def servers(kafka: KafkaSettings, model: Path, folder: Path) -> Iterator[dict[str, str]]:
    ports = {name: free_port() for name in NAMES}
    one_thread = {"OMP_NUM_THREADS": "1"}
    bare = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
    settings = {
        "mesh.mode": "explore",
        "mesh.model_path": model,
        "mesh.dtype": "float32",
        "mesh.max_model_len": MAX_LEN,
        "mesh.max_tokens": RESPONSE,
        "explorer.http_port": 0,
        "explorer.http_key": KEY,
        "gateway.port": ports["gateway"],
        "gateway.api_keys": KEY,
    }
    mesh = {**environment(kafka, settings), **one_thread}
    vllm: list[str | Path] = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model),
        *("--served-model-name", "policy"),
        *("--dtype", "float32", "--max-model-len", str(MAX_LEN), "--port", str(ports["bare"]), "--host", "127.0.0.1"),
        *("--enforce-eager", "--api-key", KEY, "--generation-config", "vllm", "--disable-log-stats"),
        "--disable-uvicorn-access-log",
    ]
    commands = {
        "vllm": (vllm, {**os.environ, **one_thread, **bare}),
        **{name: (service(name), mesh) for name in ("explorer", "gateway")},
    }
    with contextlib.ExitStack() as stack:
        children = {
            name: stack.enter_context(Child(command, env=env, cwd=Path.cwd(), output=folder / f"{name}.log"))
            for name, (command, env) in commands.items()
        }
        urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        uvloop.run(until_healthy(urls, children, folder))
        yield urls


async def until_healthy(urls: Mapping[str, str], children: Mapping[str, Child], folder: Path) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(START_S):
        for url in urls.values():
            while True:
                for name, child in children.items():
                    assert child.poll() is None, f"{name} ended:\n{tail(folder / f'{name}.log', 30)}"
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.get(f"{url}/health") as response:
                        if response.status == 200:
                            break
                await asyncio.sleep(0.2)


async def ask(http: aiohttp.ClientSession, url: str, number: int, max_tokens: int) -> float:
    words = " ".join(f"t{3 + (number * 31 + i * 7) % 500}" for i in range(16))
    asked = {"model": "policy", "messages": [{"role": "user", "content": words}], "max_tokens": max_tokens}
    began = time.perf_counter()
    async with http.post(f"{url}/v1/chat/completions", json={**asked, "temperature": 1.0}) as response:
        answer = await response.json()
        assert response.status == 200, answer
        assert answer["usage"]["completion_tokens"] > 0
    return time.perf_counter() - began


async def round_of(http: aiohttp.ClientSession, url: str, requests: int) -> float:
    numbers = iter(range(requests))

    async def client() -> None:
        for number in numbers:
            await ask(http, url, number, RESPONSE)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return requests / (time.perf_counter() - began)


async def measure(
    urls: Mapping[str, str], rounds: int, requests: int, lone: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return requests per second of each round, and seconds of each single request, of both."""
    speeds: dict[str, list[float]] = {name: [] for name in NAMES}
    latencies: dict[str, list[float]] = {name: [] for name in NAMES}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {KEY}"}) as http:
        for number in range(rounds + 1):
            # Who is first in one round is second in the next.
            for name in NAMES if number % 2 else reversed(NAMES):
                speed = await round_of(http, urls[name], requests)
                # The first round of each warms up.
                if number:
                    speeds[name].append(speed)
        for number in range(lone):
            for name in NAMES if number % 2 else reversed(NAMES):
                latencies[name].append(await ask(http, urls[name], number, LONE_RESPONSE))
    return speeds, latencies


def main() -> None:
    options = parser(__doc__).parse_args()
    rounds, requests, lone = (1, SHORT_REQUESTS, SHORT_LONE) if options.short else (ROUNDS, REQUESTS, LONE)
    with cluster_to_measure() as cluster:
        kafka = cluster.unused()
        uvloop.run(make_topics(kafka))
        model = make_tiny_qwen3(cluster.folder / "model", seed=0, shape=TINY if options.short else SMALL)
        (model / "chat_template.jinja").write_text(TEMPLATE)
        with servers(kafka, model, cluster.folder) as urls:
            speeds, latencies = uvloop.run(measure(urls, rounds, requests, lone))
    ratios = [ours / theirs for ours, theirs in zip(speeds["gateway"], speeds["bare"], strict=True)]
    points = {name: statistics.quantiles(found, n=100) for name, found in latencies.items()}
    added = [(points["gateway"][at] - points["bare"][at]) * 1000 for at in (49, 98)]
    report(
        "gateway",
        f"{CLIENTS} clients, {requests} requests x {RESPONSE} tokens a round; then 1 client x {LONE_RESPONSE} tokens",
        [
            Row("gateway over bare vLLM server, requests per second", statistics.median(ratios), "", 0.95),
            Row("gateway", statistics.median(speeds["gateway"]), "requests/s"),
            Row("bare vLLM server", statistics.median(speeds["bare"]), "requests/s"),
            less("added latency, p50", added[0], "ms", 5.0),
            less("added latency, p99", added[1], "ms", 25.0),
            less("latency of the bare server, p50", points["bare"][49] * 1000, "ms"),
        ],
        options,
        notes=[f"ratio of each round: {', '.join(f'{ratio:.3f}' for ratio in ratios)}"],
        more={"ratios": ratios},
    )


if __name__ == "__main__":
    main()
