"""Has the routers of a model choose the experts that were chosen before, with Megatron's own ``RouterReplay``.

Megatron keeps all routers of a process in one list; here each is asked by itself, so that a process may hold several
models. A choice is good for the forward pass that comes next: activations are not computed again with it.
"""

from collections.abc import Sequence

import torch

from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron.core import RouterReplay, RouterReplayAction, TopKRouter


class RoutesOfModel:
    def __init__(self, chunks: Sequence[torch.nn.Module], layout: Layout) -> None:
        self._layout = layout
        self._routers: dict[torch.nn.Module, list[tuple[int, RouterReplay]]] = {
            chunk: [(m.layer_number - 1, m.router_replay) for m in chunk.modules() if isinstance(m, TopKRouter)]
            for chunk in chunks
        }

    def choose(self, chunk: torch.nn.Module, routes: torch.Tensor | None) -> None:
        """Say what the routers of a stage choose in the next forward pass.

        ``routes``: [this rank's tokens, layers of the model, k]; None: what they find best.
        """
        if routes is not None and self._layout.sequence_parallel:
            routes = routes.chunk(self._layout.tensor_parallel)[self._layout.tensor_rank]
        for layer, router in self._routers[chunk]:
            router.clear_indices()
            if routes is None:
                router.clear_router_replay_action()
            else:
                router.set_target_indices(routes[:, layer].long())
                router.set_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
