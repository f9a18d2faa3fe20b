"""Attack 10: a trainer is started with the checkpoints of another run.

Before: it trained on from them silently, as long as sequences rose. Now a checkpoint says which cluster, topic,
namespace and base model it belongs to, and the next batch must be the next.
"""

import asyncio
import logging
import uuid
from pathlib import Path
from typing import Any

import pytest

from schemas.topics import BATCHES
from tests.support.fakes.tiny_trainer import write_model
from tests.support.mesh.mesh import unused, with_topics
from trinity_bus.bus import LogIdentity
from trinity_bus.bus.client.connection import administrator
from trinity_bus.config import KafkaSettings, MeshSettings, Settings, TrainerSettings
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import Manifest
from trinity_bus.training.errors import CheckpointError
from workers.trainer import engines
from workers.trainer.engines import load_engine, open_publisher

HERE = LogIdentity(cluster="cluster-1", topic="topic-1")


def start(
    directory: Path,
    model: Path,
    log: LogIdentity = HERE,
    namespace: str = "trinity",
    *,
    train: int = 0,
    name: str = "policy",
    **changes: Any,
) -> int:
    """As the service does it; trains some steps of nothing, and makes a checkpoint. Gives the step it began at."""
    own = {"model_path": str(model), "checkpoint_dir": directory, "threads": 1, "engine": "torch", **changes}
    settings = Settings(
        kafka=KafkaSettings(namespace=namespace),
        mesh=MeshSettings(model=name),
        trainer=TrainerSettings.model_validate(own),
    )
    engine = load_engine(settings, directory, None, log)
    publisher = open_publisher(settings, directory, engine)
    try:
        began = engine.progress.step
        for _ in range(train):
            engine.train_step([])
        if train:
            engine.save_checkpoint(directory, engine.progress).result()
        return began
    finally:
        publisher.close()


def test_a_trainer_goes_on_with_its_own_checkpoints_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, directory = write_model(tmp_path / "model"), tmp_path / "checkpoints"
    start(directory, model, train=2)
    # The same model elsewhere is the same model.
    (tmp_path / "moved").mkdir()
    for file in model.iterdir():
        (tmp_path / "moved" / file.name).write_bytes(file.read_bytes())
    assert start(directory, tmp_path / "moved") == 2
    with caplog.at_level(logging.WARNING):
        assert start(directory, model, learning_rate=0.02, clip_high=0.3) == 2
    changed = [line for line in caplog.messages if line.startswith("settings changed after step 2: ")]
    assert [line.split()[5] for line in changed] == ["trainer.learning_rate:", "trainer.clip_high:"]
    other_model = write_model(tmp_path / "other-model", seed=1)
    other_family = write_model(tmp_path / "other-family", family="llama")
    attacks: list[tuple[dict[str, Any], str, str]] = [
        ({"log": LogIdentity("cluster-2", "topic-1")}, "cluster cluster-1, here cluster-2", "CHECKPOINT_DIR"),
        ({"log": LogIdentity("cluster-1", "topic-2")}, "batches topic-1, here topic-2", "CHECKPOINT_DIR"),
        ({"namespace": "other"}, "namespace trinity, here other", "CHECKPOINT_DIR"),
        ({"model": other_model}, "model [0-9a-f]{32}, here [0-9a-f]{32}", "MODEL_PATH"),
        ({"model": other_family}, "model [0-9a-f]{32}, here [0-9a-f]{32}", "MODEL_PATH"),
    ]
    for changes, difference, fix in attacks:
        with pytest.raises(
            CheckpointError, match=rf"step-00000002 is of another run .{difference}.: .*{fix}"
        ) as refused:
            start(**{"directory": directory, "model": model, **changes})
        assert "\n" not in str(refused.value)
    assert start(directory, model) == 2, "and nothing of it is lost"


def test_a_checkpoint_that_does_not_say_is_taken_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of the first programs."""
    model, directory = write_model(tmp_path / "model"), tmp_path / "checkpoints"
    start(directory, model, train=1)
    path = directory / "step-00000001" / checkpoint.PROGRESS
    manifest = Manifest.model_validate_json(path.read_bytes())
    progress = manifest.progress.model_copy(update={"run": None, "settings": None})
    old = manifest.model_copy(update={"progress": progress})
    path.write_text(old.model_dump_json(exclude={"seal", "digests"}))
    with caplog.at_level(logging.WARNING):
        assert start(directory, model, train=1) == 1
    assert "does not say of which run it is" in caplog.text
    assert "does not say with which settings it was trained" in caplog.text
    with pytest.raises(CheckpointError, match="step-00000002 is of another run"):
        start(directory, model, LogIdentity("cluster-1", "topic-2"))


def test_settings_that_cannot_be_right_are_refused_before_anything_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, directory = write_model(tmp_path / "model"), tmp_path / "checkpoints"
    start(directory, model, train=1)
    monkeypatch.setattr(engines, "_make", lambda *_: pytest.fail("it was loaded"))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"engine": "megatron"}, "engine=torch, here megatron"),
        ({"namespace": "other"}, "namespace trinity, here other"),
        ({"name": "other"}, "mesh.model: policy -> other"),
        ({"lora_rank": 2}, "trainer.lora_rank=0, here 2"),
        ({"advantage": "gae"}, "has no critic: trainer.advantage='gae'"),
    ]
    for changes, difference in wrong:
        with pytest.raises(CheckpointError, match=difference) as refused:
            start(directory, model, **changes)
        assert "\n" not in str(refused.value)


@pytest.mark.integration
async def test_a_topic_that_is_made_anew_is_another_log(kafka: KafkaSettings) -> None:
    settings = unused(kafka)

    async def identity() -> LogIdentity:
        async with with_topics(settings, [BATCHES]) as bus:
            return await bus.identity(BATCHES)

    first, again = await identity(), await identity()
    assert first == again
    assert len(first.cluster) > 8
    assert uuid.UUID(first.topic).int != 0
    async with administrator(settings, "test") as admin:
        await admin.delete_topics([BATCHES.full_name(settings.namespace)])
    while (anew := await identity()) == first:  # noqa: ASYNC110 - a broker tells nobody that it has deleted
        await asyncio.sleep(0.1)
    assert anew.cluster == first.cluster
