"""Random histories: what happens in a simulated mesh, and how often, under settings that are drawn too."""

import random
from collections.abc import Callable

from tests.support.simulation.witness import Honest
from tests.support.simulation.world import World
from trinity_bus.config import CoordinatorSettings


def draw_settings(rng: random.Random) -> CoordinatorSettings:
    """Small limits, so that each of them is met often; everything else by chance."""
    return CoordinatorSettings(
        batch_size=4,
        group_size=2,
        max_staleness=rng.choice([0, 1, 1, 2]),
        max_inflight_batches=rng.choice([1, 2, 3]),
        over_rollout_ratio=rng.choice([0.0, 0.0, 0.25, 0.5]),
        wait_after_min_s=rng.choice([2.0, 20.0]),
        return_partial_tasks=rng.random() < 0.5,
        max_repeat_times_per_runner=rng.choice([None, None, 1, 2]),
        dynamic_timeout_ratio=rng.choice([None, None, 4.0]),
        dynamic_timeout_warmup_steps=2,
        straggler_factor=rng.choice([None, 1.5]),
        explorer_timeout_s=10,
        task_timeout_s=30,
        max_attempts=rng.choice([1, 2, 3]),
        dedup_window=300,
        max_open_tasks=rng.choice([20, 40]),
    )


def random_history(seed: int, events: int, witness: Honest | None = None) -> World:
    """A world whose coordinator has decided on so many events."""
    rng = random.Random(seed)  # noqa: S311 - histories, not secrets
    world = World(rng, draw_settings(rng), witness)
    happen(world, rng, events)
    return world


def happenings(world: World, rng: random.Random) -> list[tuple[float, Callable[[], object]]]:
    return [
        (20, world.new_task),
        (3, lambda: world.command("submit")),
        (3, lambda: world.command("finalize")),
        (0.3, lambda: world.command("abort")),
        (0.2, lambda: world.command("cancel")),
        (1, lambda: world.command("resend")),
        (2, world.contribute),
        (50, world.transaction),
        (8, lambda: world.transaction(most=8)),
        (3, world.send_again),
        (40, world.order_is_read),
        (rng.choice([6, 30, 30]), world.rollout_ends),
        (10, world.weights_arrive),
        (8, world.train),
        (10, world.beats),
        (1.2, world.explorer_starts),
        (0.6, world.explorer_dies),
        (0.3, lambda: world.explorer_dies(politely=True)),
        (0.6, world.explorer_changes_state),
        (0.8, world.trainer_starts),
        (8, lambda: world.time_passes(rng.choice([0.1, 0.5, 2.0]))),
        (0.3, lambda: world.time_passes(rng.choice([-50.0, 30.0, 1e6]))),
        (0.6, world.restart),
        (0.6, lambda: world.transaction(dies="before")),
        (0.5, lambda: world.transaction(most=5, dies="after")),
        (0.5, lambda: world.time_passes(1.0, dies=rng.choice(["before", "after"]))),
    ]


def happen(world: World, rng: random.Random, events: int) -> None:
    """One thing after another, until the coordinator has decided on so many events."""
    weights, actions = zip(*happenings(world, rng), strict=True)
    while world.inputs < events:
        for action in rng.choices(actions, weights, k=500):
            action()
        world.check_size()
