"""``/metrics``: what the gateway counts, as Prometheus reads it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workers.gateway.contributions import Contributor
from workers.gateway.request_gate import RequestGate
from workers.gateway.request_run import RequestContext


@dataclass(frozen=True, slots=True, eq=False)
class GatewayFigures(Collector):
    door: RequestGate
    context: RequestContext
    contributions: Contributor

    def collect(self) -> Iterator[Metric]:
        yield from self.door.answered.collect()
        yield from self.door.took.collect()
        sessions, explorers = self.context.sessions, self.context.explorers
        yield _counter("tokens", "Tokens, of prompts and of responses.", "kind", self.context.tokens)
        refused = self.contributions.refused
        yield _counter("contributions_refused", "Contributions that were refused.", "reason", refused)
        counts = (
            ("contributed_samples", "Samples that the coordinator has accepted.", self.contributions.contributed),
            ("moved_requests", "Requests that another explorer had to finish.", explorers.moved),
            ("busy_explorers", "Requests that an explorer did not take: its engine bore no more.", explorers.busy),
            ("forgotten_sessions", "Conversations that were forgotten with answers.", sessions.forgotten),
            ("recalled_answers", "Answers of other gateways that were found on the log.", self.context.recall.recalled),
            ("rewrites", "Samples that began because a history was rewritten.", self.context.flaws["rewrites"]),
            ("branches", "Samples that began at an earlier turn.", self.context.flaws["branches"]),
            ("tool_call_flaws", "Tool calls that could not be read.", self.context.flaws["tool_call_flaws"]),
            ("turns_passed_over", "Turns that are not on the log.", self.context.turns.passed_over),
        )
        for name, what, count in counts:
            yield CounterMetricFamily(f"gateway_{name}", what, value=count)
        gauges = (
            ("requests_running", "Requests under way.", self.door.requests),
            ("sessions", "Conversations that are remembered.", len(sessions)),
            ("ready_samples", "Samples with a reward that are not contributed yet.", sessions.ready),
        )
        for name, what, value in gauges:
            yield GaugeMetricFamily(f"gateway_{name}", what, value=value)
        usable = explorers.usable
        yield _gauge("explorer_version", "Version of each explorer.", ((one.name, one.version) for one in usable))
        running = explorers.requests
        loads = ((one.name, running.get(one.name, 0)) for one in usable)
        yield _gauge("explorer_requests", "Requests that each explorer works on.", loads)

    async def answer(self, request: web.Request) -> web.Response:
        del request
        registry = CollectorRegistry()
        registry.register(self)
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})


def _counter(name: str, what: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"gateway_{name}", what, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


def _gauge(name: str, what: str, values: Iterable[tuple[str, int]]) -> Metric:
    family = GaugeMetricFamily(f"gateway_{name}", what, labels=["explorer"])
    for explorer, value in values:
        family.add_metric([explorer], value)
    return family
