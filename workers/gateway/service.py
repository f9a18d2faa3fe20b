"""The gateway service.

::

    start:  check settings and broker -> load the tokenizer -> heartbeats of explorers, from now on -> listen

    agents --HTTP: messages, a prompt--> gateway --HTTP: token ids--> an explorer's engine
           <------------- text ---------         <-- token ids ------
    explorer-events --heartbeats--> whom to ask: model, pool, address, version, load

    after an answer --turn--> turns;    POST /feedback, /commit --> experiences, commands: Contribute <-- replies

    stop:   requests under way have ``drain_s``; then the port is closed

Kafka stands between no request and its answer, but where an agent reaches another gateway with its session: any number
of them work beside each other on one log, each with the conversations that it was told, and what the others have
answered is found in ``turns`` (``workers.gateway.turn_finder``), too where feedback on an answer comes to another one.

============================  ==========================================================================================
what fails                    what happens
============================  ==========================================================================================
an explorer                   its requests go to another one, see ``trinity_bus.gateway.explorers``
all explorers                 503, until one is heard of
the broker                    requests are answered by the explorers that are known; they are asked as long as they were
                              heard of within ``gateway.explorer_silence_s`` before
this process                  its clients' requests fail; what was not contributed is lost
============================  ==========================================================================================
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.sampling import Sampling
from schemas.topics import EXPERIENCES, EXPLORER_EVENTS
from trinity_bus.bus import Bus, Producer, Received, TopicFollower
from trinity_bus.chat import Tokenizer, renderer_for
from trinity_bus.chat.encoding import Writing, load_tokenizer
from trinity_bus.chat.renderer import PromptsOnly
from trinity_bus.client.channel import CommandChannel
from trinity_bus.config import Settings
from trinity_bus.gateway.explorers import Explorers
from trinity_bus.gateway.fleet import ServingFleet
from trinity_bus.gateway.sessions import Sessions
from trinity_bus.health.process import mark_ready, watching
from trinity_bus.runtime.http import listening
from trinity_bus.telemetry import setup_telemetry
from workers.gateway.chat import APIS, ChatApis
from workers.gateway.contributions import WORKFLOW, Contributor
from workers.gateway.request_gate import RequestGate, json_response
from workers.gateway.request_run import RequestContext
from workers.gateway.turn_finder import TurnFinder, TurnLog
from workers.preconditions import ensure, explorer_key, gateway_keys, initial_model


@dataclass(frozen=True, slots=True, eq=False)
class GatewayFigures(Collector):
    door: RequestGate
    context: RequestContext
    contributions: Contributor

    def collect(self) -> Iterator[Metric]:
        yield from self.door.answered.collect()
        yield from self.door.took.collect()
        sessions, explorers = self.context.sessions, self.context.explorers
        tokens = CounterMetricFamily("gateway_tokens", "Tokens, of prompts and of responses.", labels=["kind"])
        yield _of_each(tokens, sorted(self.context.tokens.items()))
        refused = CounterMetricFamily(
            "gateway_contributions_refused", "Contributions that were refused.", labels=["reason"]
        )
        yield _of_each(refused, sorted(self.contributions.refused.items()))
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
        usable, running = explorers.usable, explorers.requests
        versions = GaugeMetricFamily("gateway_explorer_version", "Version of each explorer.", labels=["explorer"])
        yield _of_each(versions, ((one.name, one.version) for one in usable))
        loads = GaugeMetricFamily(
            "gateway_explorer_requests", "Requests that each explorer works on.", labels=["explorer"]
        )
        yield _of_each(loads, ((one.name, running.get(one.name, 0)) for one in usable))

    async def answer(self, request: web.Request) -> web.Response:
        del request
        registry = CollectorRegistry()
        registry.register(self)
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})


def _of_each(family: CounterMetricFamily | GaugeMetricFamily, values: Iterable[tuple[str, int]]) -> Metric:
    for label, value in values:
        family.add_metric([label], value)
    return family


log = logging.getLogger("workers.gateway")

_OPEN: Final = frozenset({"/health", "/metrics"})
_DRAIN_S: Final = 10.0  # how long requests may still take when it ends


async def run(settings: Settings) -> None:
    """Answer requests until it is cancelled.

    Raises:
        ConfigError: It cannot start with these settings.
        BusError: The broker does not answer, or refuses.
    """
    ensure("gateway", settings)
    own = settings.gateway
    model = str(initial_model(settings.gateway.model_path))
    writing = Writing(own.max_model_len, own.parse_special_tokens, own.renderer)
    tokenizer = await asyncio.to_thread(load_tokenizer, model, own.chat_template_options, writing)
    telemetry = setup_telemetry("gateway", settings.telemetry, namespace=settings.kafka.namespace, instance=own.name)
    try:
        async with Bus(settings.kafka, client_id=own.name, patient=True) as bus:
            await bus.ensure_topics()
            await Gateway(settings, bus, tokenizer).run()
    finally:
        telemetry.shutdown()


class Gateway:
    def __init__(self, settings: Settings, bus: Bus, tokenizer: Tokenizer) -> None:
        own = self._own = settings.gateway
        self._bus = bus
        key = explorer_key(settings)
        fleet = ServingFleet(own.served, model=own.model, key=key, silence_s=own.explorer_silence_s)
        # What is answered may get its reward later. Of another pool than the trained model's, nothing is learned.
        self.explorers = Explorers(
            fleet, key=key, wait_s=own.engine_wait_s, timeout_s=own.timeout_s, trained=own.pool is None
        )
        sampling = Sampling(temperature=own.temperature, max_tokens=own.max_tokens)
        renderer = renderer_for(tokenizer) if tokenizer.chat_template else PromptsOnly(tokenizer)
        self._sessions = Sessions(renderer, sampling, most=own.max_sessions, keep_s=own.session_s)
        self._tokenizer, self._sampling = tokenizer, sampling
        self._door = RequestGate(gateway_keys(settings), _OPEN, own)
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.address = ""  # ``host:port``, once it listens

    async def run(self) -> None:
        """Answer until cancelled; raises ConfigError where the port cannot be listened on."""
        async with AsyncExitStack() as stack:
            follower = TopicFollower(
                lambda start: self._bus.reader(EXPLORER_EVENTS, start=start), self._hear, self._lost.set_exception
            )
            await follower.start()
            stack.push_async_callback(follower.stop)
            stack.enter_context(watching("explorers' heartbeats", follower.keeps_up))
            await stack.enter_async_context(self.explorers)
            producer = await stack.enter_async_context(self._bus.producer())
            channel = await stack.enter_async_context(CommandChannel(self._bus, producer, name=self._own.name))
            turns = TurnLog(producer, gateway=self._own.name, incarnation=channel.client, workflow=WORKFLOW)
            sending = asyncio.create_task(turns.run(), name="turns")
            stack.push_async_callback(_ended, sending)
            app = self._app(producer, channel, turns)
            self.address = await stack.enter_async_context(
                listening(app, self._own.host, self._own.port, setting="gateway.host and port", shutdown_s=_DRAIN_S)
            )
            mark_ready()
            log.info("gateway %s is ready at %s/v1", self._own.name, self._own.reached_at(self.address))
            await self._lost

    def _app(self, producer: Producer, channel: CommandChannel, turns: TurnLog) -> web.Application:
        recall = TurnFinder(self._bus, workflow=WORKFLOW, keep_s=self._own.session_s)
        context = RequestContext(
            self._own.served, self._tokenizer, self.explorers, self._sessions, self._sampling, turns, recall
        )
        contributions = Contributor(
            self._sessions,
            producer,
            channel,
            recall,
            model=self._own.model,
            max_record_bytes=self._bus.settings.max_message_bytes(EXPERIENCES),
        )
        app = web.Application(client_max_size=self._own.max_body_mib << 20, middlewares=[self._door.let_in])
        apis = ChatApis(context)
        for prefix in ("", "/sessions/{session}"):
            for path, api in APIS.items():
                app.router.add_post(f"{prefix}{path}", context.traced("chat", partial(apis.conversation, api)))
            app.router.add_post(f"{prefix}/v1/completions", context.traced("text_completion", apis.completions))
            app.router.add_post(f"{prefix}/v1/messages/count_tokens", apis.count_tokens)
            app.router.add_get(f"{prefix}/v1/responses/{{response}}", apis.stored)
            app.router.add_delete(f"{prefix}/v1/responses/{{response}}", apis.delete)
            app.router.add_get(f"{prefix}/v1/responses/{{response}}/input_items", apis.input_items)
            app.router.add_get(f"{prefix}/v1/models", apis.models)
            app.router.add_get(f"{prefix}/v1/models/{{model:.+}}", apis.models)
            app.router.add_post(f"{prefix}/feedback", contributions.feedback)
        app.router.add_post("/commit", contributions.commit)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", GatewayFigures(self._door, context, contributions).answer)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        del request
        usable = self.explorers.usable
        body = {"status": "ok" if usable else "no explorer", "explorers": {one.name: one.version for one in usable}}
        return json_response(body, 200 if usable else 503)

    def _hear(self, received: Received[Any]) -> None:
        self.explorers.heard(received.record)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
