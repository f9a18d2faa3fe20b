"""The first page: is it learning, who waits for whom, and whether the run has ended. Pure.

What happened, now and at any earlier moment, is told by the index; who is alive now, by the state of the mesh.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Final, Literal, NamedTuple

from schemas import RunnerState
from schemas.errors import one_line
from trinity_bus.console.index.terms import ExplorerRow, Extent, Point, PublishedRow, StepRow, SyncRow, TrainerRow
from trinity_bus.console.web.render import MAX_POINTS, Chart, chart, figure, moment
from trinity_bus.view import MeshState, unserved_line

type Level = Literal["bad", "warn"]

REWARD: Final = "rollout/reward/mean"
SECONDS: Final = "seconds"
TOKENS: Final = "tokens"
MAX_TESTS: Final = 5  # Evaluations whose rewards are drawn beside that of training
_LAG_MANY: Final = 10_000
_SYNC_ROWS: Final = 16
_ROW_S: Final = 60.0  # Of an explorer's rows in the index: silence that is shorter cannot be told
_LOST_S: Final = 600.0  # How long it is told that somebody is not heard any more: it may have left
_SILENT_TEACHERS: Final = 0.8  # Share of groups that teach nothing from which on it is told
# Charts of steps: title, and the metrics in it
_METRICS: Final[tuple[tuple[str, tuple[tuple[str, str], ...]], ...]] = (
    ("loss", (("loss", "loss"),)),
    ("entropy, nats", (("entropy", "entropy"),)),
    ("KL, nats", (("kl", "from the reference"), ("mismatch_k3", "between engine and trainer"))),
    ("gradient norm", (("grad_norm", "gradient norm"),)),
    ("staleness, versions", (("staleness_mean", "mean"), ("staleness_max", "most"))),
)
BY_STEP: Final = (REWARD, SECONDS, *(name for _, wanted in _METRICS for name, _ in wanted))
BY_TIME: Final = (SECONDS, TOKENS)


def alive_then(fleet: Sequence[ExplorerRow], extent: Extent) -> list[ExplorerRow]:
    """Return explorers that had spoken lately, as far as an index tells that has a row of each for a minute."""
    return [row for row in fleet if (extent.last_at or row.heard_at) - row.heard_at <= _ROW_S]


@dataclass(frozen=True, slots=True)
class Past:
    extent: Extent
    by_step: Mapping[str, Sequence[Point]]  # Metrics, of evaluations too
    by_time: Mapping[str, Sequence[Point]]
    steps: Sequence[StepRow]  # The newest ones, the newest first
    versions: Sequence[PublishedRow]  # The newest ones, the newest first
    syncs: Sequence[SyncRow]  # Of these, in the order of time
    fleet: Sequence[ExplorerRow]
    metrics: Mapping[str, float] = field(default_factory=dict)  # Of the newest step that was trained
    trainers: Sequence[TrainerRow] = ()  # Who has steps

    def silent_s(self, row: ExplorerRow) -> float:
        return max(0.0, (self.extent.last_at or row.heard_at) - row.heard_at)


class Alert(NamedTuple):
    level: Level
    text: str


class Figure(NamedTuple):
    name: str
    value: str
    href: str | None = None


@dataclass(frozen=True, slots=True)
class FleetRow:
    name: str
    state: str
    alive: bool
    pool: str
    version: str
    running: int
    slots: int
    tokens_per_s: float | None
    heard: str
    more: str = ""
    runners: str = ""  # How many of them are at something, and how often one was replaced; empty: not known


class Overview:
    """What the page shows; ``past`` is None without an index, ``state`` where an earlier moment is looked at."""

    def __init__(
        self,
        past: Past | None,
        state: MeshState | None,
        lag: Mapping[str, int],
        *,
        is_record: bool = False,
        is_away: bool = False,
    ) -> None:
        trainers = () if past is None else past.trainers
        ended_at = None if state is None else end_of(state, trainers, is_record=is_record, is_away=is_away)
        then = [] if past is None else [_then(row, past) for row in past.fleet]
        self.fleet = then if state is None else fleet(state, ended_at)
        self.figures = _figures(past, state, self.fleet, ended_at)
        # That the run has ended, in a sentence; empty: it goes on, or nobody knows
        self.ended = "" if state is None or ended_at is None else ending(state, ended_at, is_record=is_record)
        earlier = [] if past is None else _alerts_then(past)
        self.alerts = earlier if state is None else alerts(state, lag, ended_at)
        self.charts = [] if past is None else _charts(past)
        # When versions were published, and when each explorer took them
        self.syncs = [] if past is None else _syncs(past)
        # Who waits for whom, in a sentence; empty before two steps
        self.waiting = "" if past is None else waiting(past.steps)
        self.lag = {} if state is None or is_record else lag


def fleet(state: MeshState, ended_at: float | None) -> list[FleetRow]:
    """Every explorer that spoke, in the order of their names; those that are alive first."""
    rows = [
        FleetRow(
            name=one.name,
            state=one.state if one.state == "left" or state.is_alive(one) else "lost",
            alive=state.is_alive(one),
            pool=one.pool or "",
            version=one.version_told,
            running=one.attempts,
            slots=one.slots,
            tokens_per_s=one.tokens_per_s,
            heard=heard(one.heard_at, state.now, ended_at),
            more=f"{one.syncs} syncs" + f", {one.sync_failures} failed" * bool(one.sync_failures),
            runners=_runners(one.runners),
        )
        for one in state.explorers.values()
    ]
    return sorted(rows, key=lambda row: (not row.alive, row.name))


def _runners(runners: Sequence[RunnerState]) -> str:
    if not runners:
        return ""
    restarts = sum(one.restarts for one in runners)
    busy = sum(one.state == "busy" for one in runners)
    return f"{busy} of {len(runners)} busy" + f", {restarts} restarted" * bool(restarts)


def _then(row: ExplorerRow, past: Past) -> FleetRow:
    silent_s, version = past.silent_s(row), str(row.version) if row.version >= 0 else ""
    work = (row.running, row.slots, row.tokens_per_s)
    return FleetRow(
        row.explorer, row.state, silent_s <= _ROW_S, row.pool or "", version, *work, f"{span(silent_s)} before"
    )


def alerts(state: MeshState, lag: Mapping[str, int], ended_at: float | None = None) -> list[Alert]:
    """Return what is wrong now, the worst first."""
    # Of a run that has ended nobody is missing.
    found = [] if ended_at is not None else _of_now(state, lag)
    if state.trained:
        found += _of_step(state.trained[-1].step, state.trained[-1].metrics)
    found += [Alert("warn", one_line(error)) for error in reversed(state.errors)]
    return found


def _of_now(state: MeshState, lag: Mapping[str, int]) -> list[Alert]:
    found: list[Alert] = []
    if state.coordinator is not None and not state.coordinator_is_alive:
        found.append(Alert("bad", f"no coordinator has spoken for {span(state.now - state.coordinator_at)}"))
    if state.trainer is not None and not state.trainer_is_alive:
        found.append(Alert("bad", f"{state.trainer.trainer} has not spoken for {span(state.now - state.trainer_at)}"))
    if lost := [row.name for row in fleet(state, None) if row.state == "lost"]:
        found.append(Alert("bad", f"lost: {few(lost)}"))
    if state.coordinator is not None:
        found += [Alert("bad", unserved_line(one)) for one in state.coordinator.unserved]
    found += [
        Alert("warn", f"the coordinator has {count:,} records of {topic} still to read")
        for topic, count in lag.items()
        if count > _LAG_MANY
    ]
    return found


def waiting(steps: Sequence[StepRow]) -> str:
    """Say who waits for whom, by the newest steps: how much of the time between two of them the trainer works."""
    done = [
        (step.trained_at, step.seconds or 0.0) for step in steps[:10] if step.trained_at is not None and step.groups
    ]
    if len(done) < 2 or done[0][0] <= done[-1][0]:
        return ""
    share = min(1.0, sum(seconds for _, seconds in done[:-1]) / (done[0][0] - done[-1][0]))
    if share > 0.9:
        return f"The explorers wait for the trainer: it works {share:.0%} of the time."
    if share < 0.5:
        return f"The trainer waits for rollouts: it works {share:.0%} of the time."
    return f"Trainer and explorers take turns: the trainer works {share:.0%} of the time."


def _alerts_then(past: Past) -> list[Alert]:
    gone = [row.explorer for row in past.fleet if _ROW_S < past.silent_s(row) <= _LOST_S]
    found = [Alert("warn", f"not heard for over a minute, gone or lost: {few(gone)}")] if gone else []
    done = [step.step for step in past.steps if step.trained_at is not None]
    return found + (_of_step(done[0], past.metrics) if done else [])


def _of_step(step: int, metrics: Mapping[str, float]) -> list[Alert]:
    found = []
    groups, skipped = metrics.get("groups", 0.0), metrics.get("groups_skipped", 0.0)
    if metrics.get("groups") == 0.0 and not metrics.get("trained_tokens"):
        found.append(
            Alert("bad", f"step {step} trained on nothing: every task of its batch failed, or it was passed over")
        )
    if groups and skipped / groups > _SILENT_TEACHERS:
        found.append(Alert("warn", f"step {step}: {skipped:.0f} of {groups:.0f} groups teach nothing"))
    if metrics.get("updates_skipped_in_a_row", 0.0):
        found.append(Alert("bad", f"step {step}: updates were skipped, their gradients were not finite"))
    return found


def _figures(
    past: Past | None, state: MeshState | None, rows: Sequence[FleetRow], ended_at: float | None
) -> list[Figure]:
    found = []
    done = [] if past is None else [step for step in past.steps if step.trained_at is not None]
    if done:
        found += [
            Figure("step", str(done[0].step), f"/steps/{done[0].step}"),
            Figure("reward", figure(done[0].reward) or "none", f"/steps/{done[0].step}"),
        ]
    if past is not None:
        tests = _tests(past)
        found += [
            Figure("held-out reward" + f", {name.split('/')[1]}" * (len(tests) > 1), figure(points[-1].value))
            for name, points in tests.items()
        ]
        if past.versions:
            found.append(Figure("version", str(past.versions[0].record.version), "/versions"))
        found.append(Figure("samples", f"{past.extent.samples:,}", "/samples"))
    if ended_at is None and (state is not None or rows):
        alive = [row for row in rows if row.alive]
        found += [
            Figure("tokens/s", figure(sum(row.tokens_per_s or 0.0 for row in alive))),
            Figure("explorers", str(len(alive))),
            Figure("attempts running", str(sum(row.running for row in alive))),
        ]
        if runners := [] if state is None else state.runners():
            found.append(Figure("runners busy", f"{sum(one.state == 'busy' for one in runners)}/{len(runners)}"))
    if past is not None:
        found.append(Figure("dead letters", f"{past.extent.dead_letters:,}", "/dead-letters"))
    return found


def _tests(past: Past) -> dict[str, Sequence[Point]]:
    # The rewards on tasks that nobody trains on, by the names of the metrics
    found = {name: points for name, points in past.by_step.items() if name.startswith("eval/") and points}
    return dict(islice(found.items(), MAX_TESTS))


def _charts(past: Past) -> list[Chart]:
    reward = [
        ("training", past.by_step.get(REWARD, ())),
        *((n.split("/")[1], each) for n, each in _tests(past).items()),
    ]
    found = [chart("reward", [(name, _places(points)) for name, points in reward])]
    for title, wanted in _METRICS:
        lines = [(label, _places(past.by_step[name])) for name, label in wanted if past.by_step.get(name)]
        found.append(chart(title, lines))
    seconds, tokens = past.by_time.get(SECONDS, ()), past.by_time.get(TOKENS, ())
    # Of what is sampled by time, a point is the mean of as many steps as it counts.
    apart = [(point.x, (point.x - before.x) / point.count) for before, point in pairwise(seconds)]
    times = [("a step", _by_minute(_places(seconds), seconds)), ("from one to the next", _by_minute(apart, seconds))]
    rates = [
        (point.x, point.value * point.count / (point.x - before.x))
        for before, point in pairwise(tokens)
        if point.x > before.x
    ]
    speed = [("tokens/s", _by_minute(rates, tokens))]
    return [
        *found,
        chart("seconds, by minute of the run", times, "minute"),
        chart("tokens/s that were trained on, by minute of the run", speed, "minute"),
    ]


def _places(points: Sequence[Point]) -> list[tuple[float, float]]:
    return [(point.x, point.value) for point in points]


def _by_minute(places: Sequence[tuple[float, float]], whole: Sequence[Point]) -> list[tuple[float, float]]:
    return [((x - whole[0].x) / 60, value) for x, value in places]


def _syncs(past: Past) -> list[tuple[str, list[tuple[float, str]]]]:
    published = [
        (row.published_at, f"version {row.record.version} was published, step {row.record.step}")
        for row in reversed(past.versions)
    ]
    taken: dict[str, list[tuple[float, str]]] = {}
    for sync in past.syncs:
        how = f"{sync.transfer_s:.2f} s, generation stood still for {sync.pause_s:.2f} s"
        told = f"took version {sync.version}: {how}" if sync.ok else f"did not take version {sync.version}"
        taken.setdefault(sync.explorer, []).append((sync.at, told))
    rows = [("published", published), *sorted(taken.items())[:_SYNC_ROWS]]
    return [(name, moments[-MAX_POINTS:]) for name, moments in rows if moments]


_STEP_S: Final = 600.0  # So long a step may take of which nobody else tells


def end_of(state: MeshState, trainers: Sequence[TrainerRow], *, is_record: bool, is_away: bool) -> float | None:
    """Return when a run has ended; None: it goes on, or nobody can know, as where the broker ``is_away``."""
    at = state.ended_at
    if at is None or is_record:
        return at
    return None if is_away or _trains_on(trainers, state, at) else at


def _trains_on(trainers: Sequence[TrainerRow], state: MeshState, ended_at: float) -> bool:
    # Whether somebody is at steps who tells of nothing else: a stage of examples, a shadow, a replay
    return any(
        state.now - one.last_at <= _STEP_S
        and (one.follows is not None or state.trainer is None or one.last_at > ended_at + state.alive_s)
        for one in trainers
    )


def ending(state: MeshState, at: float, *, is_record: bool) -> str:
    unsaid = sorted(one.name for one in state.explorers.values() if one.state != "left")
    cut_off = f" {few(unsaid)} did not say so: a crash, or a broker that is gone." * bool(unsaid)
    others = [] if state.coordinator is None else [(state.coordinator.coordinator, state.coordinator_at)]
    others += [] if state.trainer is None else [(state.trainer.trainer, state.trainer_at)]
    when = ", ".join(f"{name} {heard(one, state.now, at)}" for name, one in others)
    cut_off += f" Coordinators and trainers never say that they leave; heard last: {when}." * bool(when)
    if is_record:
        return f"This is a record of a run: its log, opened again. The last word in it is of {moment(at)} UTC.{cut_off}"
    return f"The run has ended: nobody has spoken since {moment(at)} UTC, {span(state.now - at)} ago.{cut_off}"


def few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" * (len(names) > 8))


def heard(at: float, now: float, ended_at: float | None) -> str:
    """Say when somebody was heard: before the end, where there is one."""
    if ended_at is not None:
        return "at the end" if ended_at - at < 1 else f"{span(ended_at - at)} before the end"
    return f"{max(0.0, now - at):.1f} s ago"


def span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
