"""Upgrades in either order: what the version before wrote is read here, what is written here it reads.

The version before is history: the state that it wrote (``tests/support/golden_state``), its record schemas
(``tests/support/records_before.json``) and records (``tests/unit/schemas/golden``, read by
``tests/unit/schemas/test_golden.py``). The version after is this program with one level more and one field more.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgpack
import pytest

from schemas import CommandReply, FinalizeUpgrade, Record
from schemas.codec import RECORDS, decode
from schemas.topics import COORDINATOR_STATE
from tests.support.effects import written
from tests.support.golden_state import FILES, load, machine_of, with_records
from tests.support.mesh.mesh import Mesh, trinity_bus
from tests.support.mesh.waiting import until
from trinity_bus.coordination import CommandArrived, CoordinatorMachine, EventArrived, StateError, Tick
from trinity_bus.coordination.batches.parts import AVERAGE
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.state import codec
from trinity_bus.coordination.state.codec import NEWEST_LEVEL
from workers.coordinator.outputs import unpack_leader, unpack_positions

BEFORE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "support" / "records_before.json").read_text())
NEW_WORDS: dict[str, set[str]] = {
    # The first two answer SkipBatch, which the version before does not send. The third a client of that version gets
    # that ends another's batch: it cannot read it, says so in its log, and takes it for no answer.
    # The others answer Contribute, which it does not send.
    "command_reply.error": {
        *("not_finalized", "already_trained", "not_yours"),
        *("known_task", "too_stale", "beyond_the_log", "wrong_record", "over_limit"),
    },
    # A trainer's last heartbeats, behind its last step: the version before makes dead letters of them, and has had all
    # that it trained.
    "event.trainer_heartbeat.state": {"done"},
    # Written where synchronizer.sync_method is object, which docs/operations.md says to set after an upgrade.
    "event.step_trained.method": {"object"},
    "model_version.method": {"object"},
    "published_version.method": {"object"},
}
"""By ``schema.field``: words that the version before does not know, each with the reason why it never reads one."""
WIDER = {"task.messages.content"}
"""Fields that may be more than the version before reads: to it such a task is a dead letter. Who sends one needs
services of this version."""

golden_states = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def finalize(machine: CoordinatorMachine, level: int = NEWEST_LEVEL) -> CommandReply:
    """What the operator is told."""
    command = FinalizeUpgrade(client="upgrade", command_id=f"to-{level}", level=level)
    (reply,) = written(machine.handle(CommandArrived(command), 0.0), CommandReply)
    return reply


def apply(store: dict[str, bytes], changes: list[tuple[str, bytes | None]]) -> None:
    """What a changelog becomes."""
    for key, value in changes:
        if value is None:
            store.pop(key, None)
        else:
            store[key] = value


# -- the coordinator's state -----------------------------------------------------------------------------------------


@golden_states
def test_until_an_upgrade_is_finalized_either_version_takes_over_and_then_only_the_new_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = load(path)
    store = dict(golden["entries"])
    explorers = [key for key in store if key.startswith("explorer/")]
    older, newer = NEWEST_LEVEL, NEWEST_LEVEL + 1
    with monkeypatch.context() as upgraded:
        upgraded.setattr(codec, "NEWEST_LEVEL", newer)
        upgraded.setattr(Explorer, "SINCE", {"lane": newer})
        machine = machine_of(golden["settings"], store)
        assert machine.level == older
        for now, kind, value in golden["told"]:
            machine.handle(Tick() if kind == "Tick" else EventArrived(cast("Any", decode(value, *RECORDS))), now)
        apply(store, machine.changes())
        assert not any("lane" in msgpack.unpackb(machine.entries()[key])[1] for key in explorers)
    assert machine_of(golden["settings"], store).level == older, "the version before has taken over"
    with monkeypatch.context() as upgraded:
        upgraded.setattr(codec, "NEWEST_LEVEL", newer)
        upgraded.setattr(Explorer, "SINCE", {"lane": newer})
        machine = machine_of(golden["settings"], store)
        assert finalize(machine, newer).detail == f"the state has level {newer} now, {older} before"
        apply(store, machine.changes())
        assert all("lane" in msgpack.unpackb(store[key])[1] for key in explorers)
        successor = machine_of(golden["settings"], store)
        assert (successor.level, successor.entries()) == (newer, store)
        assert finalize(successor, older).detail == f"the state has level {newer} already"
    with pytest.raises(StateError, match=f"has level {newer}, .*run the coordinator of the release that wrote it"):
        machine_of(golden["settings"], store)


def test_a_level_that_the_coordinator_at_work_does_not_know_is_refused() -> None:
    machine = machine_of({}, load(FILES[0])["entries"])
    reply = finalize(machine, NEWEST_LEVEL + 1)
    assert reply.error == "invalid"
    assert "upgrade it first" in reply.detail
    assert machine.level == NEWEST_LEVEL


def test_a_mesh_that_begins_now_has_the_newest_level(monkeypatch: pytest.MonkeyPatch) -> None:
    for level in (NEWEST_LEVEL, NEWEST_LEVEL + 1):
        monkeypatch.setattr(codec, "NEWEST_LEVEL", level)
        machine = machine_of({}, {})
        assert (machine.level, machine.changes()) == (level, [])
        store: dict[str, bytes] = {}
        finalize(machine, level)
        apply(store, machine.changes())
        assert machine_of({}, store).level == level


def newer(entries: Mapping[str, bytes]) -> dict[str, bytes]:
    """The state as a newer program might have written it: more fields in each row, and entries of another kind."""
    more: dict[str, bytes] = {"weather/today": msgpack.packb([codec.FRAMING, {"rain": True}])}
    for key, value in entries.items():
        kind = key.partition("/")[0]
        framing, body = msgpack.unpackb(value)
        if kind in ("books", "explorer", "batch", "progress", "sync"):
            body["of_tomorrow"] = {"x": [1]}
            if kind == "sync":
                body["choice"] = body["choice"] and {**body["choice"], "why": "because"}
        elif kind in ("assigned", "finalizers"):
            body = [[*row, {"more": key}] for row in body]
        elif kind == "answer":
            body = [*body, "more"]
        elif kind == "tasks":
            # With the last fields of this version, which these do not have.
            body = [msgpack.packb([*msgpack.unpackb(item), 0, AVERAGE, "more"]) for item in body]
        elif kind == "results":
            body = [msgpack.packb([*msgpack.unpackb(item), "more"]) for item in body]
        elif kind == "replies":
            body = [body[0], msgpack.packb([*msgpack.unpackb(body[1]), "more"])]
        elif kind == "outcomes":
            record = msgpack.unpackb(msgpack.unpackb(body[1]))
            body = [body[0], msgpack.packb(msgpack.packb({**record, "of_tomorrow": 1}))]
        more[key] = msgpack.packb([framing, body])
    return more


@golden_states
def test_what_a_newer_version_has_written_survives_this_one(path: Path) -> None:
    golden = load(path)
    entries = newer(golden["entries"])
    machine = machine_of(golden["settings"], entries)
    kept = machine.entries()
    assert kept.keys() == entries.keys()
    for key, value in kept.items():
        body, was = with_records(msgpack.unpackb(value)[1]), with_records(msgpack.unpackb(entries[key])[1])
        assert ({**body, **was} if isinstance(was, dict) else was) == body, key

    store = dict(kept)
    for now, kind, value in golden["told"]:
        machine.handle(Tick() if kind == "Tick" else EventArrived(cast("Any", decode(value, *RECORDS))), now)
        apply(store, machine.changes())
    assert store == machine.entries()
    changed = 0
    for key, value in store.items():
        kind, body = key.partition("/")[0], msgpack.unpackb(value)[1]
        if kind in ("books", "explorer", "sync") or (kind in ("batch", "progress") and key in entries):
            assert body["of_tomorrow"] == {"x": [1]}, key
            changed += value != kept.get(key)
    assert changed > 3, "nothing was read, modified and written"
    assert store["weather/today"] == entries["weather/today"]
    again = machine_of(golden["settings"], store)
    assert again.entries() == store


def test_entries_of_the_service_itself_may_grow() -> None:
    leader = unpack_leader(msgpack.packb(["coordinator-0", "life", "active", {"zone": "b"}]))
    assert (leader.name, leader.incarnation, leader.state) == ("coordinator-0", "life", "active")
    assert unpack_positions(msgpack.packb([["tasks", 3, 17, "epoch"]])) == {("tasks", 3): 17}


# -- records ---------------------------------------------------------------------------------------------------------


def properties(schema: dict[str, Any], root: dict[str, Any], path: str) -> dict[str, tuple[set[str], set[str], bool]]:
    """Of every field below: the types and the words that it may have, and whether it must be there."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    found: dict[str, tuple[set[str], set[str], bool]] = {}
    for name, field in schema.get("properties", {}).items():
        choices = list(field.get("anyOf", [field]))
        choices = [root["$defs"][o["$ref"].rpartition("/")[2]] if "$ref" in o else o for o in choices]
        # Words without a type are text.
        types = {str(option.get("type", "string" if "enum" in option else None)) for option in choices}
        words = {str(word) for option in choices for word in option.get("enum", [option.get("const")]) if word}
        found[f"{path}.{name}"] = types, words, name in schema.get("required", [])
        for option in [*choices, *(option.get("items", {}) for option in choices)]:
            found |= properties(option, root, f"{path}.{name}")
    return found


@pytest.mark.parametrize("cls", [cls for cls in RECORDS if issubclass(cls, Record)], ids=lambda cls: cls.SCHEMA)
def test_services_of_both_versions_read_each_others_records(cls: type[Record]) -> None:
    """A field stays what it was, a new one may be missing, and no word is new that the version before might read."""
    if cls.SCHEMA not in BEFORE:
        return  # The version before makes a dead letter of it, or passes over it.
    before = BEFORE[cls.SCHEMA]
    assert before["version"] == cls.VERSION
    now_schema = cls.model_json_schema()
    old, new = (properties(schema, schema, cls.SCHEMA) for schema in (before["schema"], now_schema))
    for name, (types, words, required) in old.items():
        assert name in new, f"{name} is gone"
        new_types, new_words, still = new[name]
        if name.removeprefix("rollout.dispatch.") in WIDER:
            assert types < new_types, f"{name} was {types}, is {new_types}"
            continue
        assert new_types == types, f"{name} was {types}, is {new_types}"
        assert words <= new_words, f"{name} does not take {words - new_words} any more"
        unknown = new_words - words - NEW_WORDS.get(name, set()) if words else set()
        assert not unknown, f"{name} may be {unknown}, which the version before refuses"
        assert still == required, f"{name} was {'needed' if required else 'optional'}, and is not any more"
    for name in new.keys() - old.keys():
        in_new_record = name.rpartition(".")[0] not in {cls.SCHEMA} | {known.rpartition(".")[0] for known in old}
        assert in_new_record or not new[name][2], f"{name} is new, and the version before does not send it"


# -- on a real broker ------------------------------------------------------------------------------------------------


@pytest.mark.integration
async def test_a_coordinator_takes_over_from_the_version_before_and_the_operator_finalizes(mesh: Mesh) -> None:
    golden = load(FILES[0])
    limits = ("max_staleness", "max_inflight_batches", "group_size", "max_attempts")
    settings = {name: golden["settings"][name] for name in limits}
    async with mesh.connected() as (_, producer):
        for key, value in golden["entries"].items():
            await producer.send_raw(COORDINATOR_STATE, key, value)
        await producer.flush()
        newer = NEWEST_LEVEL + 1
        with mesh.coordinator(module="tests.support.fakes.newer_coordinator", **settings):
            await until(lambda: "ready: restored" in mesh.log())
            assert "run `trinity-bus upgrade finalize`" in mesh.log()
            done = await asyncio.to_thread(trinity_bus, mesh.kafka, "upgrade", "finalize", "--level", str(newer))
            assert done.returncode == 0, done.stderr
            assert f"the state has level {newer} now, {NEWEST_LEVEL} before" in done.stderr
            refused = await asyncio.to_thread(trinity_bus, mesh.kafka, "upgrade", "finalize", "--level", "99")
            assert refused.returncode == 1
            assert "upgrade it first" in refused.stderr
        with mesh.coordinator(**settings) as older:
            assert await asyncio.to_thread(older.wait, 60) != 0
        assert f"the coordinator's state has level {newer}" in mesh.log(2)
