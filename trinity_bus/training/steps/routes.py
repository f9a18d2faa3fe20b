"""Which experts an engine's routers chose for each token of a sample, for the trainer's to choose again. Pure numpy.

Engine and trainer compute with different kernels, so their routers differ on tokens that are nearly a draw, and a token
that went to other experts has another probability for no fault of the policy (Ma et al., arXiv:2510.11370). With
``trainer.router_replay`` the choice is the engine's, as the optional column ``routes`` of experiences has it; what a
chosen expert weighs is computed from the trainer's own router, which therefore learns. All passes over a sample have
its routes, those of older policies and of a reference too.

A sample's routes are not used, and it is counted in ``samples_without_routes``, where there are none, or they are of
another number of layers or experts a token, or name an expert twice or one that there is not. The trainer's own routers
choose for it, as for all without the setting.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from schemas.record import Metrics
from trinity_bus.training.families.shape import ModelShape
from trinity_bus.training.steps.packing import TrainSample


def prepared(samples: Sequence[TrainSample], shape: ModelShape, *, replay: bool) -> tuple[list[TrainSample], Metrics]:
    if not replay:
        return [sample if sample.routes is None else replace(sample, routes=None) for sample in samples], {}
    kept = [sample if _usable(sample, shape) else replace(sample, routes=None) for sample in samples]
    return kept, {"samples_without_routes": float(sum(sample.routes is None for sample in kept))}


def _usable(sample: TrainSample, shape: ModelShape) -> bool:
    routes = sample.routes
    if routes is None or routes.shape[1] != shape.layers * shape.experts_per_token:
        return False
    ordered = np.sort(routes.reshape(-1, shape.experts_per_token), axis=1)
    return bool((ordered[:, 1:] != ordered[:, :-1]).all() and ordered.max() < shape.experts)
