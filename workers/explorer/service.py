"""The explorer service.

::

    start:  check settings -> start the fork server of the runners -> import vLLM, and check the broker beside it
            -> start the engine -> connect -> take the lane's end position -> first heartbeat (this is how it joins)

    rollouts (its lane) --Dispatch--> attempt, in a runner --> experiences, then events: RolloutFinished
                              '--completed turns, where there are several, and long responses under way --> turns
                        --Cancel----> attempt is cancelled in its runner, and aborted in the engine
    model-versions ----names it-----> weights received beside generation --> events: WeightsSynced
    gateways, HTTP ----token ids-----> the engine --> token ids, log-probabilities     (where explorer.http_port is set)
    workflows ---ask another pool----> its explorers, HTTP --> answers, scores   (where explorer.auxiliary_pools is set)
    every heartbeat_s, and on change ------------------------------------> events: ExplorerHeartbeat
    every runner_report_s -----------------------------------------------> events: RunnersReport

    stop:   DRAINING: no new orders, drain_s for what runs -> events: heartbeats and WeightsSynced as before
            -> turns: what is drawn of long responses -> events: where it lies, a heartbeat of what is given back,
            ExplorerLeft

A restarted explorer is a new *incarnation*: orders to the old one are void, because the coordinator hands that work out
again. So nothing has to be remembered over a restart, and the lane is read from its end. One that follows no trainer
serves the checkpoint that it starts with for good, and reads no versions (:mod:`trinity_bus.coordination.pools`).

============================  ========================================================================================
what fails                    what happens
============================  ========================================================================================
a workflow, or its time       ``RolloutFinished`` with status failed, and the type and message of the error
a runner                      another takes its place; its attempts run again, see ``trinity_bus/runners``
the runners' fork server      as the engine's process
a weight transfer             ``WeightsSynced`` not ok; the engine serves what it served before
the engine's process          ``ExplorerLeft``, and the process ends with one line; a supervisor starts it anew
one of its name begins        the coordinator says so (``Superseded``, in its lane); the process ends with one line
the broker                    it waits, and after ``kafka.outage_s`` the process ends with one line
it is told to stop            what is not done after drain_s is given back, and handed to others without a try lost
this process is killed        its engine's process and its runners end with it; the coordinator notices the silence
============================  ========================================================================================
"""

import asyncio
import logging
import socket
import time
import uuid
from contextlib import AsyncExitStack
from functools import partial

from schemas import Cancel, Dispatch, ExplorerHeartbeat, ExplorerLeft, RunnersReport, SetPace, Superseded
from schemas.event import ExplorerState, Follows
from schemas.topic import ROOM
from schemas.topics import EXPERIENCES, EXPLORER_DEAD_LETTERS, EXPLORER_EVENTS, MODEL_VERSIONS, ROLLOUTS
from trinity_bus import awake
from trinity_bus.bus import Bus, Producer, Reader, Undecodable, lane_partition
from trinity_bus.chat.encoding import Writing, load_tokenizer
from trinity_bus.config import Settings, told_settings
from trinity_bus.errors import SupersededError
from trinity_bus.health.process import mark_ready, watching
from trinity_bus.inference.concurrency import ConcurrencyController
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.inference.launch import check_model, import_vllm
from trinity_bus.inference.server.engine import ServerEngine
from trinity_bus.runners.engine import ExplorerEngine
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.runners.partials import write_when_due
from trinity_bus.runners.service import Runners
from trinity_bus.runtime.memory import freeze_gc
from trinity_bus.runtime.service import in_daemon_thread
from trinity_bus.sandbox import why_no_sandbox
from trinity_bus.telemetry import setup_telemetry
from trinity_bus.telemetry.metrics import RUNNER_DEATHS, SLOT_TIME, SLOTS_OFFERED, Occupancy
from workers.explorer.auxiliary import AuxiliaryPools
from workers.explorer.executor import IDLE, OrderFilter, RolloutExecutor
from workers.explorer.heartbeats import Heartbeats
from workers.explorer.http_side import HttpSide
from workers.explorer.outcome import ExplorerIdentity
from workers.explorer.turns import TurnKeeper
from workers.explorer.weights import ServedVersion, WeightFollower
from workers.preconditions import ensure

_log = logging.getLogger(__name__)

_POLL_S = 1.0


async def run(settings: Settings, runners: socket.socket | None = None) -> None:
    """Explores until it is cancelled. ``runners`` leads to a fork server that is there already; unset: one is started.

    Raises:
        ConfigError: It cannot start with these settings, or they name workflows that cannot be imported.
        EngineError: The engine does not start, or has died.
        RunnersError: Runners cannot be started.
        BusError: The broker does not answer, or refuses.
    """
    name = settings.explorer.name
    ensure("explorer", settings)
    if settings.explorer.engine_url is None:
        check_model(settings.explorer)
    # The fork server loads beside the engine, and takes less long.
    with ForkServer(settings, channel=runners) as fork_server:
        engine = _engine(settings)
        try:
            # The broker may be starting beside this process. It is to be there before the engine starts, because that
            # takes long; and is left again, because the engine's process is forked.
            await asyncio.gather(_import_engine(settings), _ensure_topics(settings), _tell_of_sandbox())
            _log.info("the engine starts with %s", settings.explorer.engine_url or settings.explorer.model_path)
            await engine.start()
            if isinstance(engine, InferenceEngine):
                _log.info("the engine computes in %s", engine.dtype)
            _log.info("the engine serves; runners load workflows and the tokenizer")
            await fork_server.ready()
            _log.info("connecting")
            # After the engine, whose process must not inherit exporters.
            namespace = settings.kafka.namespace
            telemetry = setup_telemetry("explorer", settings.telemetry, namespace=namespace, instance=name)
            try:
                async with Bus(settings.kafka, client_id=name) as bus:
                    freeze_gc()
                    await ExplorerService(settings, bus, engine, fork_server).run()
            finally:
                telemetry.shutdown()
        finally:
            await engine.stop()


async def _tell_of_sandbox() -> None:
    if (reason := await why_no_sandbox()) is not None:
        _log.warning("rewards and tools that run programs fail here: %s", reason)


async def _ensure_topics(settings: Settings) -> None:
    async with Bus(settings.kafka, client_id=settings.explorer.name, patient=True) as bus:
        await bus.ensure_topics()


async def _import_engine(settings: Settings) -> None:
    if settings.explorer.engine_url is None:
        await in_daemon_thread(partial(import_vllm, settings.explorer), name="import-vllm")


def _engine(settings: Settings) -> InferenceEngine | ServerEngine:
    own, sync = settings.explorer, settings.synchronizer
    if own.engine_url is not None:
        return ServerEngine(own, sync_timeout_s=sync.sync_timeout_s)
    return InferenceEngine(own, sync)


class ExplorerService:
    """One incarnation of an explorer, over a connected bus, a started engine and a fork server, all left open."""

    def __init__(self, settings: Settings, bus: Bus, engine: ExplorerEngine, fork_server: ForkServer) -> None:
        self._settings = settings.explorer
        self._told_settings = told_settings(settings, "mesh", "explorer", "synchronizer")
        self._record_content = settings.telemetry.record_content
        self._bus = bus
        self._engine = engine
        self._fork_server = fork_server
        self._who = ExplorerIdentity(
            explorer=self._settings.name,
            incarnation=uuid.uuid4().hex,
            model=settings.explorer.served_model,
        )
        self._follows: Follows = settings.explorer.follows or "trainer"
        self._served = ServedVersion(engine.model_version, fixed=self._follows != "trainer")
        self._bearable = ConcurrencyController(self._settings.slots, self._settings.min_slots)
        self._orders = OrderFilter(self._who.explorer, self._who.incarnation)

    async def run(self) -> None:
        """Work until cancelled, then drain and say goodbye.

        EngineDeadError, RunnersError, BusError, or SupersededError: another explorer has this one's name.
        """
        workflows = await self._fork_server.ready()
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(self._bus.producer())
            # Their positions are fixed before the first heartbeat: no order to this incarnation can lie before them.
            number = lane_partition(self._who.explorer, len(await self._bus.end_offsets(ROLLOUTS)))
            lane = await stack.enter_async_context(
                self._bus.reader(
                    ROLLOUTS,
                    partitions=[number],
                    start="end",
                    # Other lanes may share the partition: their orders need not even be decoded.
                    key=self._who.explorer,
                )
            )
            versions = None
            if self._follows == "trainer":
                versions = await stack.enter_async_context(self._bus.reader(MODEL_VERSIONS, start="beginning"))
            stack.enter_context(watching("the orders", lane.keeps_up))
            http = None
            if self._settings.http_port is not None:
                own = self._settings
                writing = Writing(own.max_model_len, own.parse_special_tokens, own.renderer)
                load = partial(load_tokenizer, own.model_path or "", own.chat_template_options, writing)
                side = HttpSide(self._settings, self._engine, self._served, self._bearable, load)
                http = await stack.enter_async_context(side)
            pools = await stack.enter_async_context(AuxiliaryPools(self._settings, self._bus))
            runners = Runners(self._fork_server, self._engine, self._settings, pools)
            runners.start()
            stack.push_async_callback(runners.close)
            await self._work(producer, (number, lane), versions, runners, workflows, http=http, lost=pools.lost)

    async def _work(
        self,
        producer: Producer,
        lane: tuple[int, Reader],
        versions: Reader | None,
        runners: Runners,
        workflows: list[str],
        *,
        http: HttpSide | None,
        lost: asyncio.Future[None],
    ) -> None:
        slots = Occupancy(IDLE, self._settings.slots)
        SLOT_TIME.watch(slots)
        RUNNER_DEATHS.add(0)

        def heartbeat(state: ExplorerState) -> ExplorerHeartbeat:
            beat = self._heartbeat(state, lane[0], workflows, executor)
            return beat if http is None else http.told(beat)

        heartbeats = Heartbeats(
            producer, interval_s=self._settings.heartbeat_s, make=heartbeat, settings=self._told_settings
        )
        executor = RolloutExecutor(
            runners,
            producer,
            self._who,
            bounds=self._engine.bounds,
            served=self._served,
            slots=slots,
            turns=TurnKeeper(self._bus, producer, on_first=heartbeats.tell),
            max_group_bytes=self._bus.settings.max_message_bytes(EXPERIENCES) - ROOM,
            record_content=self._record_content,
            settings=self._settings,
        )
        async with AsyncExitStack() as until_drained:
            # Ends after the loops: long responses that are finished while this drains are of new weights, too, and
            # explorers that join take them from here.
            following: asyncio.Task[None] | None = None
            if versions is not None:
                follower = WeightFollower(self._engine, producer, self._who, served=self._served, heartbeats=heartbeats)
                following = await until_drained.enter_async_context(follower.beside(versions))
            reason, drain_s, in_order = "stopped", self._settings.drain_s, True
            try:
                async with asyncio.TaskGroup() as loops:
                    loops.create_task(heartbeats.run(), name="heartbeats")
                    loops.create_task(self._handle_orders(lane[1], executor, producer, heartbeats), name="orders")
                    if following is not None:
                        loops.create_task(_raised(asyncio.shield(following)), name="weights")
                    loops.create_task(self._watch_engine(), name="engine")
                    if self._settings.most_lost_tokens:
                        writing = write_when_due(lambda: executor.drawers, self._engine.steps, self._settings)
                        loops.create_task(writing, name="long responses")
                    if self._settings.adaptive_slots:
                        loops.create_task(self._adapt(executor, heartbeats, http), name="slots")
                    loops.create_task(runners.run(), name="runners")
                    loops.create_task(self._report(producer, runners), name="report")
                    loops.create_task(_raised(executor.fatal), name="attempts")
                    loops.create_task(_raised(runners.fatal), name="runners' end")
                    loops.create_task(_raised(lost), name="auxiliary pools' end")
                    mark_ready()
                    _log.info("ready: %d slots", self._settings.slots)
            except BaseExceptionGroup as group:
                reason, drain_s, in_order = str(group.exceptions[0]), 0.0, False
                await until_drained.aclose()
                raise
            finally:
                await _drain(heartbeats, executor, http, drain_s, in_order=in_order)
                await until_drained.aclose()
                if in_order:
                    # Nothing runs any more: what it was is given back, and costs no try.
                    await heartbeats.send()
                await self._leave(producer, reason)

    def _heartbeat(
        self, state: ExplorerState, lane: int, workflows: list[str], executor: RolloutExecutor
    ) -> ExplorerHeartbeat:
        return ExplorerHeartbeat(
            explorer=self._who.explorer,
            incarnation=self._who.incarnation,
            state=state,
            slots=self._bearable.limit,
            running=executor.running,
            model_version=self._served.version,
            workflows=workflows,
            tokens_generated=self._engine.tokens_generated,
            model=self._who.model,
            pool=self._settings.pool,
            follows=self._follows,
            abilities=self._settings.abilities.split(","),
            max_model_len=self._settings.max_model_len,
            lane=lane,
            members=self._engine.members if isinstance(self._engine, ServerEngine) else [],
        )

    async def _handle_orders(
        self, lane: Reader, executor: RolloutExecutor, producer: Producer, heartbeats: Heartbeats
    ) -> None:
        while True:
            for received in await lane.batch(_POLL_S):
                if isinstance(received.record, Undecodable):
                    refused = received.record
                    await producer.send_dead_letter(received, refused.reason, refused.detail, to=EXPLORER_DEAD_LETTERS)
                match self._orders.handle(received.record):
                    case Dispatch() as order:
                        executor.start(order, received.raw, received.traceparent)
                    case Cancel() as order:
                        executor.cancel(order)
                    case SetPace(pace_s=pace_s):
                        heartbeats.set_pace(pace_s)
                    case Superseded():
                        raise SupersededError(
                            f"another explorer has begun as {self._who.explorer!r} and has this one's place: give each "
                            "a name of its own (TRINITY_BUS_EXPLORER__NAME)"
                        )

    async def _report(self, producer: Producer, runners: Runners) -> None:
        while True:
            await asyncio.sleep(self._settings.runner_report_s)
            report = RunnersReport(
                explorer=self._who.explorer,
                incarnation=self._who.incarnation,
                runners=runners.states(),
                sent_at=time.time(),
            )
            await (await producer.send(EXPLORER_EVENTS, self._who.explorer, report))

    async def _watch_engine(self) -> None:
        raise await self._engine.wait_dead()

    async def _adapt(self, executor: RolloutExecutor, heartbeats: Heartbeats, http: HttpSide | None) -> None:
        bearable = self._bearable
        SLOTS_OFFERED.set(bearable.limit)
        while True:
            await asyncio.sleep(self._settings.heartbeat_s)
            before, load = bearable.limit, self._engine.load
            in_flight = len(executor.running) + (0 if http is None else http.requests)
            if load is not None and bearable.observe(load, in_flight, awake.now()) != before:
                _log.info("the engine bears %d at once, before %d: %s", bearable.limit, before, load)
                SLOTS_OFFERED.set(bearable.limit)
                heartbeats.tell()

    async def _leave(self, producer: Producer, reason: str) -> None:
        left = ExplorerLeft(explorer=self._who.explorer, incarnation=self._who.incarnation, reason=reason)
        await (await producer.send(EXPLORER_EVENTS, self._who.explorer, left))


async def _drain(
    heartbeats: Heartbeats, executor: RolloutExecutor, http: HttpSide | None, drain_s: float, *, in_order: bool
) -> None:
    # Nothing new is begun.
    heartbeats.state = "draining"
    await heartbeats.send()
    drained = [executor.finish(drain_s)] if http is None else [executor.finish(drain_s), http.drain(drain_s)]
    async with asyncio.TaskGroup() as draining:
        # Whoever is silent for as long as that may take is taken for dead, and what it finishes for late.
        beating = draining.create_task(heartbeats.run(), name="last heartbeats")
        await asyncio.gather(*drained)
        if in_order and await executor.checkpoint():
            # Whoever goes on with it is told where it lies, while it still runs here.
            await heartbeats.send()
        await executor.cancel_all()
        beating.cancel()


async def _raised(fatal: asyncio.Future[None]) -> None:
    await fatal
