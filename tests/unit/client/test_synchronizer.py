import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from schemas import ExplorerHeartbeat, TrainerHeartbeat, VersionWanted
from schemas.topics import EVENTS, MODEL_VERSIONS
from tests.support.fakes.announcements import announced
from tests.support.fakes.log import FakeBus, FakeLog
from trinity_bus.client import Synchronizer
from trinity_bus.config import Settings
from trinity_bus.errors import NotStartedError
from trinity_bus.weights.errors import TensorFileError


def trainer(version: int) -> TrainerHeartbeat:
    of: dict[str, Any] = {"trainer": "trainer-0", "incarnation": "life", "model": "policy", "state": "ready"}
    return TrainerHeartbeat(**of, step=version, version=version, master_address="127.0.0.1", master_port=1)


class CountingBus(FakeBus):
    """Counts the readers that were opened."""

    def __init__(self, log: FakeLog) -> None:
        super().__init__(log)
        self.readers = 0

    def reader(self, *topics: Any, **options: Any) -> Any:
        self.readers += 1
        return super().reader(*topics, **options)


class Rig:
    """A fake log, and a client of it."""

    def __init__(self) -> None:
        self.bus = CountingBus(FakeLog())
        self.late_s = 0.0
        """By how much more time has passed for the client."""
        self.client = Synchronizer(
            Settings(),
            bus=self.bus,  # type: ignore[arg-type]  # a fake one
            clock=lambda: time.monotonic() + self.late_s,
        )

    async def say(self, record: Any) -> None:
        topic = next(topic for topic in (MODEL_VERSIONS, *EVENTS) if type(record) in topic.records)
        await (await self.bus.producer().send(topic, getattr(record, topic.sender or "", "key"), record))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await self.client._follower().changed(1.0)

    async def serve(self, version: int, **fields: Any) -> None:
        await self.say(announced(version, **fields))
        await self.until(lambda: self.client.model_version == version)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    async with made.client:
        yield made


async def test_preparing_at_once_from_several_tasks_connects_once_and_shutting_down_disconnects() -> None:
    rig = Rig()
    await rig.say(announced(3))
    await asyncio.gather(*(rig.client.prepare() for _ in range(5)))
    # One for replies to commands, one for versions.
    assert rig.bus.readers == 2
    assert rig.client.get_latest_model_version() == 3
    await asyncio.gather(rig.client.shutdown(), rig.client.shutdown())
    with pytest.raises(NotStartedError):
        rig.client.get_latest_model_version()
    async with rig.client:
        assert rig.client.model_version == 3


async def test_the_trainer_requires_a_sync_while_what_it_has_published_is_held(rig: Rig) -> None:
    client = rig.client
    assert client.trainer_requires_weight_sync() is None
    await rig.say(announced(2))
    await rig.say(trainer(3))
    await rig.until(lambda: client.trainer_requires_weight_sync() is True)
    await rig.say(announced(3))
    await rig.until(lambda: client.trainer_requires_weight_sync() is False)
    rig.late_s = 3600
    assert client.trainer_requires_weight_sync() is None
    assert client.get_trainer_status() == "stopped"


async def test_the_explorers_require_a_sync_until_what_they_asked_for_is_there(rig: Rig) -> None:
    client = rig.client
    await rig.serve(2)
    assert not client.explorer_requires_sync()
    await rig.say(VersionWanted(model="policy", at_least=4))
    await rig.until(client.explorer_requires_sync)
    await rig.say(announced(4))
    await rig.until(lambda: not client.explorer_requires_sync())
    assert client.get_latest_model_version() == 4


async def test_the_states_of_explorers_are_counted(rig: Rig) -> None:
    client = rig.client
    for number, state in enumerate(("ready", "ready", "syncing")):
        beat = ExplorerHeartbeat(explorer=f"e{number}", incarnation="1", state=state, slots=1, model_version=number)
        await rig.say(beat)
    await rig.until(lambda: sum(client.get_explorer_status_counts().values()) == 3)
    assert client.get_explorer_status_counts() == {"running": 2, "require_sync": 1}
    assert client.serving(1) == ["e1"]


async def test_weights_to_be_served_are_described_and_read_from_a_checkpoint(rig: Rig, tmp_path: Path) -> None:
    weights = {"b": torch.arange(6, dtype=torch.bfloat16).view(2, 3), "a": torch.tensor(1.5), "none": torch.zeros(0, 4)}
    save_file(weights, tmp_path / "model.safetensors")
    client = rig.client
    assert (client.get_state_dict_meta(), client.get_model_state_dict()) == (None, (None, -1))
    await rig.serve(7, checkpoint=str(tmp_path))
    described = client.get_state_dict_meta()
    assert described is not None
    assert sorted(described) == [("a", "float32", ()), ("b", "bfloat16", (2, 3)), ("none", "float32", (0, 4))]
    found, version = client.get_model_state_dict()
    assert version == 7
    assert found is not None
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert found["b"].dtype is torch.bfloat16
    # Elsewhere the folder is not there.
    await rig.serve(8, checkpoint=str(tmp_path / "elsewhere"))
    assert (client.get_state_dict_meta(), client.get_model_state_dict()) == (None, (None, 8))


async def test_a_damaged_checkpoint_is_an_error_with_its_name(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(100)}, path)
    path.write_bytes(path.read_bytes()[:-8])
    await rig.serve(1, checkpoint=str(tmp_path))
    with pytest.raises(TensorFileError, match="lies at 0 to 400 of 392"):
        rig.client.get_model_state_dict()


async def test_what_the_reference_takes_by_position_is_taken_by_position(rig: Rig) -> None:
    await rig.serve(3)
    assert await rig.client.wait_new_model_state_dict(3, True) == 3


async def test_a_checkpoint_without_a_configuration_is_no_hugging_face_folder(rig: Rig, tmp_path: Path) -> None:
    await rig.serve(3, checkpoint=str(tmp_path))
    assert (rig.client.get_latest_model_path(), rig.client.get_latest_model_path(True)) == (tmp_path, None)
    (tmp_path / "config.json").write_text("{}")
    assert rig.client.get_latest_model_path(True) == tmp_path
