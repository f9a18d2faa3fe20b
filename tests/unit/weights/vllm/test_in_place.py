"""Loading in place, as on a GPU: the engine's side of a transfer into the model that it computes with, half ways too.

Real: vLLM's reload of layers, our transfer engine, its control server, the receiver, a server of weights. FAKE: the
model (two linear layers on the CPU), and of vLLM the worker's session and the front end, which calls the worker in this
process. A model that is not computed eagerly is loaded in place on a CPU, too.
"""

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from schemas import ModelVersion
from tests.support.faults.transfers import announcement
from trinity_bus.inference.errors import EngineDeadError
from trinity_bus.inference.weight_sync import ControlClient, SyncOutcome
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.transport import source_of

# vLLM and what it imports warn of their own use of each other.
# The first test waits until it is imported: half a minute, minutes on a machine at its limit.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

EXPLORER = "explorer-0"
SIZE = 8
type Tensors = dict[str, torch.Tensor]


class Model(torch.nn.Module):
    """Loads as vLLM's models do: by each parameter's own loader."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(SIZE, SIZE, bias=False)
        self.second = torch.nn.Linear(SIZE, SIZE, bias=False)

    def load_weights(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> set[str]:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        parameters, loaded = dict(self.named_parameters()), set()
        for name, tensor in tensors:
            parameter = parameters[name]
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
            loaded.add(name)
        return loaded

    def holds(self, tensors: Tensors) -> list[bool]:
        """Whether each parameter has these values."""
        return [torch.equal(parameter, tensors[name]) for name, parameter in self.named_parameters()]


def version(value: float, **changed: torch.Tensor) -> Tensors:
    """Weights of one version; a tensor of it may be another."""
    layers = {"first": torch.full((SIZE, SIZE), value), "second": torch.full((SIZE, SIZE), value + 1)}
    return {f"{name}.weight": tensor for name, tensor in (layers | changed).items()}


def make_worker(model: Model) -> Any:
    """A worker with our extension, whose session is vLLM's, and whose model is loaded in place."""
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    from trinity_bus.weights.vllm.engine import OverlappedWeightTransferEngine, WorkerExtension

    class Worker(WorkerExtension):
        rank = 0

        def __init__(self) -> None:
            model_config = SimpleNamespace(enforce_eager=False, dtype=torch.float32)
            config = SimpleNamespace(parallel_config=None, model_config=model_config, lora_config=None)
            self.vllm_config = config
            self.model_runner = SimpleNamespace(sampler=SimpleNamespace(gather_logprobs=None))
            self.weight_transfer_engine = OverlappedWeightTransferEngine(None, config, torch.device("cpu"), model)
            self._weight_update_active = False

        def start_weight_update(self) -> None:
            assert not self._weight_update_active
            self.weight_transfer_engine.start_weight_update()
            self._weight_update_active = True

        def update_weights(self, update_info: dict[str, Any]) -> None:
            self.weight_transfer_engine.receive_weights(self.weight_transfer_engine.parse_update_info(update_info))

        def finish_weight_update(self) -> None:
            try:
                self.weight_transfer_engine.finish_weight_update()
            finally:
                self._weight_update_active = False

    record_metadata_for_reloading(model)
    return Worker()


class FrontEnd:
    """Calls one worker, as ``AsyncLLM`` does; notes what generation is told."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.engine_core = self
        self.told: list[str] = []

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return [getattr(self._worker, method)(*args)]
        except Exception as error:  # noqa: BLE001 - what vLLM makes of an error in its worker
            raise Exception(str(error)) from None  # noqa: TRY002

    async def pause_scheduler_async(self, *, mode: str, clear_cache: bool) -> None:
        assert (mode, clear_cache) == ("keep", True)
        self.told.append("pause")

    async def resume_scheduler_async(self) -> None:
        self.told.append("resume")

    async def resume_generation(self) -> None:
        self.told.append("resume")

    async def set_weight_version_async(self, version: str) -> None:
        self.told.append(f"version {version}")


class Rig:
    """A model in a worker, its front end, and a server of versions."""

    def __init__(self, server: WeightServer) -> None:
        self.server = server
        self.model = Model()
        self.worker = make_worker(self.model)
        self.front_end = FrontEnd(self.worker)
        self.addresses = [parameter.data_ptr() for parameter in self.model.parameters()]
        self.version = -1

    def announce(self, tensors: Tensors) -> ModelVersion:
        self.version += 1
        checksum = self.server.stage(self.version, tensors.items())
        return announcement(self.server, self.version, checksum, EXPLORER, epoch=self.version)

    @asynccontextmanager
    async def control(self) -> AsyncIterator[ControlClient]:
        control = await ControlClient.open(self.front_end)
        try:
            yield control
        finally:
            await control.close()

    async def sync(self, control: ControlClient, tensors: Tensors) -> SyncOutcome:
        announced = self.announce(tensors)
        self.front_end.told.clear()
        return await control.sync(self.front_end, source_of(announced, EXPLORER, 5))


@pytest.fixture
def way_made(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """What was told to give way; this process does not."""
    made: list[torch.device] = []
    monkeypatch.setattr("trinity_bus.weights.vllm.engine._make_way", made.append)
    return made


@pytest.fixture
def rig(way_made: list[torch.device]) -> Iterator[Rig]:
    del way_made
    server = WeightServer(timeout_s=5)
    made = Rig(server)
    yield made
    made.worker.weight_transfer_engine.shutdown()
    server.close()


async def test_versions_are_loaded_where_the_model_is(rig: Rig, way_made: list[torch.device]) -> None:
    async with rig.control() as control:
        for value in (1.0, 3.0):
            outcome = await rig.sync(control, version(value))
            assert rig.front_end.told == ["pause", f"version {rig.version}", "resume"]
            assert outcome.nbytes == 2 * 4 * SIZE * SIZE
            assert rig.model.holds(version(value)) == [True, True]

    # Captured graphs know them.
    assert [parameter.data_ptr() for parameter in rig.model.parameters()] == rig.addresses
    assert way_made == [torch.device("cpu")]


async def test_nothing_is_loaded_of_tensors_with_other_names(rig: Rig) -> None:
    async with rig.control() as control:
        await rig.sync(control, version(1.0))
        with pytest.raises(WeightTransferError, match="not those of the last version"):
            await rig.sync(control, version(2.0) | {"third.weight": torch.ones(1)})
        # Generation goes on with what it had, and the next version is taken.
        assert rig.front_end.told == ["pause", "resume"]
        assert rig.model.holds(version(1.0)) == [True, True]
        await rig.sync(control, version(3.0))
        assert rig.model.holds(version(3.0)) == [True, True]


async def test_a_version_larger_than_the_model_could_be_is_refused_before_it_comes(rig: Rig) -> None:
    async with rig.control() as control:
        await rig.sync(control, version(1.0))
        with pytest.raises(WeightTransferError, match=f"this model takes {2 * SIZE * SIZE * 8 * 2} at most"):
            await rig.sync(control, version(2.0) | {"third.weight": torch.ones(10_000)})
        # It was not even begun to be loaded.
        assert rig.front_end.told == []
        await rig.sync(control, version(3.0))
        assert rig.model.holds(version(3.0)) == [True, True]


def misshapen() -> Tensors:
    """The right names, and a shape that the second layer has not; by then, the first one has been loaded."""
    return version(2.0, second=torch.ones(2 * SIZE, SIZE))


def missing() -> Tensors:
    """Nothing for the second layer."""
    return {name: tensor for name, tensor in version(2.0).items() if name.startswith("first")}


@pytest.mark.parametrize(
    ("tensors", "served"),
    [
        pytest.param(misshapen, 1, id="another shape"),
        # The first version says which names there are, so this one must be the first.
        pytest.param(missing, 0, id="a layer gets nothing"),
    ],
)
async def test_an_engine_loaded_half_way_is_dead(rig: Rig, tensors: Callable[[], Tensors], served: int) -> None:
    async with rig.control() as control:
        for value in range(served):
            await rig.sync(control, version(float(value)))
        with pytest.raises(EngineDeadError, match="loaded half way"):
            await rig.sync(control, tensors())
        # No token is drawn from the mix.
        assert rig.front_end.told == ["pause"]
        assert dict(rig.model.named_parameters())["first.weight"][0, 0] == 2.0
        assert rig.worker.weight_transfer_engine.torn
        # A good version does not make it whole: what loading has left behind is not known.
        with pytest.raises(EngineDeadError, match="restart the engine"):
            await rig.sync(control, version(5.0))
        assert rig.front_end.told == ["pause"]


@pytest.mark.parametrize(("device", "changes"), [("cpu", 1), ("cuda", 0)])
def test_the_thread_that_computes_gives_way_where_it_needs_the_cores(
    device: str, changes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trinity_bus.weights.vllm.engine import _make_way

    lowered: list[tuple[int, int, int]] = []
    monkeypatch.setattr("os.setpriority", lambda *how: lowered.append(how))
    # Of a process that was started with less than others, and may not take more.
    monkeypatch.setattr("os.getpriority", lambda *_: 10)
    before = sys.getswitchinterval()
    try:
        _make_way(torch.device(device))
        assert sys.getswitchinterval() < before
    finally:
        sys.setswitchinterval(before)
    assert [(who, nice > 10) for _, who, nice in lowered] == [(threading.get_native_id(), True)] * changes


async def test_an_engine_that_cannot_say_whether_it_is_torn_is_dead(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> bool:
        raise RuntimeError("no answer")

    async with rig.control() as control:
        monkeypatch.setattr(type(rig.worker), "trinity_transfer_cancel", refuse)
        await rig.sync(control, version(1.0))
        with pytest.raises(EngineDeadError, match="cannot say what it has loaded"):
            await rig.sync(control, misshapen())


EXPERTS, WIDTH = 4, 6


def make_mixture(rank: int, ranks: int) -> Any:
    """A layer of experts as one of some ranks has it. Real: how vLLM maps, loads, splits them. FAKE: what makes it."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
    from vllm.model_executor.models.utils import AutoWeightsLoader

    class Layer(RoutedExperts):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.layer_name, self.lora_base_layer_prefix, self.quant_config = "experts", "", None
            self.ckpt_gate_proj_name, self.ckpt_up_proj_name = "gate_proj", "up_proj"
            self.ckpt_down_proj_name, self._fused_shared_expert_quantizer = "down_proj", None
            self.quant_method = object()
            self.expert_map_manager = SimpleNamespace(map_global_to_local=int, num_fused_shared_experts=0)
            self.moe_config = SimpleNamespace(
                num_experts=EXPERTS, num_logical_experts=EXPERTS, is_act_and_mul=True, tp_shard_with_padding=False,
                tp_rank=rank, moe_parallel_config=SimpleNamespace(tp_size=ranks),
            )  # fmt: skip
            width, self.loaded = WIDTH // ranks, 0
            self.w13_weight = torch.nn.Parameter(torch.zeros(EXPERTS, 2 * width, SIZE))
            self.w2_weight = torch.nn.Parameter(torch.zeros(EXPERTS, SIZE, width))
            for parameter in (self.w13_weight, self.w2_weight):
                parameter.weight_loader = self.weight_loader

        def weight_loader(self, *args: Any, **how: Any) -> bool | None:
            self.loaded += 1
            taken: bool | None = super().weight_loader(*args, **how)
            return taken

    class Mixture(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = Layer()

        def load_weights(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> set[str]:
            loaded: set[str] = AutoWeightsLoader(self).load_weights(tensors)
            return loaded

    made = Mixture()
    record_metadata_for_reloading(made)
    return made


def experts(value: float) -> Tensors:
    """A version of them, all numbers of which differ."""
    sizes = {"gate": (WIDTH, SIZE), "up": (WIDTH, SIZE), "down": (SIZE, WIDTH)}
    names = [(f"experts.{n}.{part}_proj.weight", size) for n in range(EXPERTS) for part, size in sizes.items()]
    ones = torch.arange(float(WIDTH * SIZE))
    return {name: (ones + value + n * len(ones)).view(size) for n, (name, size) in enumerate(names)}


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (1, 2)])
def test_each_tensor_of_an_experts_layer_is_handled_once_and_none_may_be_missing(rank: int, ranks: int) -> None:
    from trinity_bus.weights.vllm.loading import load

    model = make_mixture(rank, ranks)
    layer = model.experts
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    for value in (1.0, 5000.0):
        wanted, layer.loaded = experts(value), 0
        load(model, SimpleNamespace(dtype=torch.float32), wanted.items())
        # Not to be counted, and again in earnest: that is seconds for some ten thousand, and generation waits.
        assert layer.loaded == len(wanted)
        for n in range(EXPERTS):
            gate, up, down = (wanted[f"experts.{n}.{part}_proj.weight"] for part in ("gate", "up", "down"))
            assert torch.equal(layer.w13_weight[n], torch.cat([gate.chunk(ranks)[rank], up.chunk(ranks)[rank]]))
            assert torch.equal(layer.w2_weight[n], down.chunk(ranks, 1)[rank])
        assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    del wanted["experts.2.up_proj.weight"]
    with pytest.raises(WeightTransferError, match=r"nothing for \['2\.up_proj\.'\] of experts"):
        load(model, SimpleNamespace(dtype=torch.float32), wanted.items())


A, B = "layers.0.q_proj.lora_A.weight", "layers.0.q_proj.lora_B.weight"


def test_pairs_of_one_rank_are_an_adapter_and_nothing_else_is() -> None:
    from trinity_bus.weights.vllm.adapter import rank_of

    pair = {A: torch.zeros(2, 8), B: torch.zeros(8, 2)}
    assert rank_of(pair, 2) == 2
    for odd, why in (
        ({}, "pairs"),
        ({A: pair[A]}, "pairs"),
        ({**pair, "layers.0.q_proj.weight": torch.zeros(8, 8)}, "pairs"),
        ({A: pair[A], B: torch.zeros(8, 3)}, "one rank"),
        ({A: torch.zeros(4, 8), B: torch.zeros(8, 4)}, "at most 2"),
    ):
        with pytest.raises(WeightTransferError, match=why):
            rank_of(odd, 2)
