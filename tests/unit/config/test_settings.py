import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from schemas import TrainerHeartbeat
from schemas.codec import decode, encode
from tests.support.narrowing import some
from trinity_bus.config import (
    CoordinatorSettings,
    ExplorerSettings,
    KafkaSettings,
    MeshSettings,
    Settings,
    TrainerSettings,
    forget_secrets,
    secret_variables,
    setting_fields,
    told_settings,
    values_told,
)
from trinity_bus.config.sections import is_secret
from trinity_bus.config.settings import read_given
from trinity_bus.errors import ConfigError

pytestmark = pytest.mark.usefixtures("no_settings")

LOGIN = "TRINITY_BUS_KAFKA__SASL_PASSWORD"


def test_the_environment_sets_values_that_sections_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS", "one:9092, [::1]:9093,,[fe80::1%eth0]:9094,")
    monkeypatch.setenv(LOGIN, "hunter2")
    monkeypatch.setenv("TRINITY_BUS_EXPLORER__SLOTS", "3")
    monkeypatch.setenv("trinity_bus_telemetry__run_dir", str(tmp_path))
    monkeypatch.setenv("TRINITY_BUS_EXPLORER__NAME", "")
    for name, value in (("NAMESPACE", "team-a"), ("MODEL", "m"), ("MODEL_PATH", "/m"), ("DTYPE", "float32")):
        monkeypatch.setenv(f"TRINITY_BUS_MESH__{name}", value)
    monkeypatch.setenv("TRINITY_BUS_MESH__MAX_RECORD_MIB", "8")
    settings = Settings()
    assert (settings.kafka.bootstrap_servers, settings.kafka.namespace) == (
        "one:9092,[::1]:9093,[fe80::1%eth0]:9094",
        "team-a",
    )
    assert settings.telemetry.run_dir == tmp_path
    assert settings.coordinator.model == settings.mesh.model == "m"
    assert (settings.explorer.model_path, settings.explorer.dtype, settings.explorer.slots) == ("/m", "float32", 3)
    assert settings.explorer.name == "explorer-0", "an empty variable counts as unset"
    assert (settings.trainer.model_path, settings.trainer.dtype) == ("/m", "float32")
    assert (settings.coordinator.max_batch_tasks, settings.coordinator.max_batch_parts) == (7168, 14_336)
    assert "hunter2" not in repr(settings)


def test_a_section_that_a_program_has_made_keeps_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_BUS_MESH__MODEL", "m")
    monkeypatch.setenv("TRINITY_BUS_MESH__NAMESPACE", "team-a")
    settings = Settings(kafka=KafkaSettings(namespace="own"), coordinator=CoordinatorSettings(batch_size=3))
    assert (settings.kafka.namespace, settings.coordinator.model) == ("own", "m")
    assert "max_staleness" not in settings.coordinator.model_fields_set


SERVERS = "KAFKA__BOOTSTRAP_SERVERS"
NOT_SERVERS = "expected host:port, several separated by commas"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (SERVERS, "localhost", f"@='localhost': {NOT_SERVERS}"),
        (SERVERS, "localhost:70000", f"@='localhost:70000': {NOT_SERVERS}"),
        (SERVERS, ",", f"@=',': {NOT_SERVERS}"),
        (SERVERS, "::1:9092", f"@='::1:9092': {NOT_SERVERS}"),
        ("KAFKA__BOOTSTRAP_SERVER", "localhost:9092", f"@ is not a setting; did you mean ~{SERVERS}?"),
        ("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092", f"@ is not a setting; did you mean ~{SERVERS}?"),
        ("KAFKA__NAMESPACE", "team-a", "@ is not a setting; did you mean ~MESH__NAMESPACE?"),
        ("MESH__NAMESPACE_FILE", "/dev/null", "@ is not a setting; did you mean ~MESH__NAMESPACE?"),
        ("WATERMELON", "1", "@ is not a setting"),
        ("MESH__MAX_TOKENS", "1024", "@ is 1024, which leaves no room for prompts: ~MESH__MAX_MODEL_LEN is 1024"),
        ("KAFKA", "localhost:9092", "@ is not a setting: name one of the section, such as ~KAFKA__..."),
        ("MESH__NAMESPACE", "a b", "@='a b': string should match pattern '^[A-Za-z0-9][A-Za-z0-9_.-]*$'"),
        ("KAFKA__SSL_CAFILE", "/no/such.pem", "@='/no/such.pem': no such file; give the path of a readable file"),
        ("KAFKA__SSL_CERTFILE", __file__, "~KAFKA__SSL_KEYFILE is not set: it goes together with @"),
        ("MESH__CHAT_TEMPLATE_OPTIONS", "think=0", "@='think=0': input should be a valid dictionary"),
        ("COORDINATOR__BATCH_SIZE", "0", "@='0': input should be greater than or equal to 1"),
        ("COORDINATOR__TICK_S", "inf", "@='inf': input should be a finite number"),
        ("EXPLORER__NAME", "x" * 300, "@='" + "x" * 119 + "...: string should have at most 200 characters"),
        ("EXPLORER__RUNNER_ENVIRONMENT", f"A,{LOGIN}", f"@='A,{LOGIN}': workflows may not have {LOGIN}"),
        (
            "TRAINER__OVERLONG_BUFFER",
            "300",
            "@ is 300, so every response would lose of its reward: ~MESH__MAX_TOKENS is 256",
        ),
    ],
)
def test_a_wrong_value_is_one_line_that_names_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    # In the table "@" is the variable, and "~" the prefix of others.
    monkeypatch.setenv(f"TRINITY_BUS_{variable}", value)
    with pytest.raises(ConfigError) as caught:
        Settings()
    assert str(caught.value) == message.replace("@", f"~{variable}").replace("~", "TRINITY_BUS_")


def test_a_batch_is_no_larger_than_the_records_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_BUS_MESH__MAX_RECORD_MIB", "8")
    monkeypatch.setenv("TRINITY_BUS_COORDINATOR__BATCH_SIZE", "7169")
    with pytest.raises(ConfigError, match=r"BATCH_SIZE is 7169, and a batch may have 7168 tasks with records of 8 MiB"):
        Settings()


@pytest.mark.parametrize(
    "variable", ["TRINITY_BUS_TRAINER_SERVICE_HOST", "TRINITY_BUS_SERVICE_PORT_HTTP", "TRINITY_BUS_X_PORT_80_TCP_ADDR"]
)
def test_what_kubernetes_says_of_services_is_left_alone(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "10.0.0.1")
    monkeypatch.setenv("TRINITY_BUS_HEALTH_PORT", "tcp://10.0.0.1:80")
    Settings()
    monkeypatch.setenv("TRINITY_BUS_HEALTH_PORT", "8080")
    with pytest.raises(ConfigError, match="TRINITY_BUS_HEALTH_PORT is not a setting; did you mean TRINITY_BUS_HEALTH_"):
        Settings()


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOGIN, "hunter2")
    monkeypatch.setenv("TRINITY_BUS_KAFKA__SASL_PASSWROD", "hunter3")
    monkeypatch.setenv("TRINITY_BUS_KAFKA__SECURITY_PROTOCOL", "SASL_SSL")
    with pytest.raises(ConfigError) as caught:
        Settings()
    assert "hunter" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__, "the cause would print the whole input"
    with pytest.raises(ConfigError, match=r"SASL_PASSWORD=\(secret\)"):
        Settings(kafka={"sasl_password": 1})


def test_every_setting_is_described() -> None:
    assert [path for path, field in setting_fields().items() if not field.description] == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"hunter2 \n", None),
        (None, "No such file or directory; give the path of a readable file"),
        (b"", "the file is empty"),
        (b"\n", "the file is empty"),
        (b"\xff\xfe", "the file is not UTF-8 text"),
        (b"x" * (1 << 17), "the file is too large"),
    ],
)
def test_a_secret_can_lie_in_a_file_and_comes_one_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, complaint: str | None
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv(LOGIN + "_file" if complaint is None else LOGIN + "_FILE", str(file))
    if complaint is None:
        assert some(Settings().kafka.sasl_password).get_secret_value() == "hunter2 "
        monkeypatch.setenv(LOGIN, "hunter2")
        with pytest.raises(ConfigError, match="are both set") as raised:
            Settings()
        assert "hunter2" not in str(raised.value)
        return
    with pytest.raises(ConfigError) as raised:
        Settings()
    assert str(raised.value) == f"{LOGIN}_FILE={str(file)!r}: {complaint}"


def test_secrets_are_forgotten_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in secret_variables():
        monkeypatch.setenv(variable, "hunter2")
    monkeypatch.setenv(LOGIN.lower() + "_file", "/run/secrets/password")
    monkeypatch.setenv("TRINITY_BUS_CONFIG", "mesh.toml")
    monkeypatch.setenv("TRINITY_BUS_MESH__NAMESPACE", "team-a")
    forget_secrets()
    assert {name for name in os.environ if name.upper().startswith("TRINITY_BUS_")} == {"TRINITY_BUS_MESH__NAMESPACE"}


def test_an_explorer_follows_the_trainer_where_there_is_one() -> None:
    def explorer(mode: str, **values: object) -> ExplorerSettings:
        return Settings(mesh={"mode": mode, "model_path": "/m"}, explorer=values).explorer

    assert explorer("both").follows == "trainer"
    assert explorer("explore").follows == explorer("both", follows="none").follows == "none"
    assert (explorer("both").model_path, explorer("both", model_path="/judge").model_path) == ("/m", "/judge")
    assert (explorer("both").first_version, explorer("explore").first_version) == (-1, 0)
    assert explorer("explore", fixed_version=7).first_version == 7
    judge = explorer("both", follows="none", pool="judge")
    assert (judge.first_version, judge.served_model, judge.is_in_own_pool) == (-1, "judge", False)
    assert explorer("both", pool="long").served_model == "policy"


@pytest.mark.parametrize(
    ("setting", "option", "why"),
    [
        ("explorer.engine_options", "seed", "set explorer.seed"),
        ("explorer.engine_options", "data_parallel_size_local", "start more explorers"),
        ("explorer.engine_options", "kv_offloading_size", "must not outlive its version"),
        ("explorer.engine_options", "enable_eplb", "the experts' first places"),
        ("explorer.engine_options", "load_format", "must be those of the trainer"),
        ("explorer.engine_options", "speculative_config", "a request with top_k ends the engine"),
        ("trainer.optimizer_options", "lr", "set trainer.learning_rate"),
        ("trainer.optimizer_options", "muon_momentum", "the state of AdamW"),
    ],
)
def test_options_that_would_break_a_promise_are_refused_with_the_reason(setting: str, option: str, why: str) -> None:
    settings, wrong = read_given({setting: {option: 1}})
    assert settings is None
    assert f"{option} cannot be set: " in wrong[setting]
    assert why in wrong[setting]


def test_other_options_are_passed_through() -> None:
    given = {"block_size": 32, "compilation_config": {"mode": 0, "sizes": [1, 2]}}
    settings, wrong = read_given({"explorer.engine_options": given, "trainer.optimizer_options": {"adam_eps": 1e-6}})
    assert settings is not None, wrong
    assert settings.explorer.engine_options == given
    assert settings.trainer.optimizer_options == {"adam_eps": 1e-6}


def test_no_secret_is_told_nothing_without_bounds_and_what_was_told_is_read_again() -> None:
    settings = Settings(
        mesh=MeshSettings(model_path="x" * 5000),
        explorer=ExplorerSettings(http_key=SecretStr("the-key-of-explorers"), engine_url="http://me:password@there:1"),
        trainer=TrainerSettings(learning_rate=0.5),
    )
    told = told_settings(settings, *Settings.model_fields)
    assert not [word for word in ("the-key-of-explorers", "password") if word in str(told)]
    assert told["explorer.engine_url"] == '"http://***@there:1"'
    assert (told["trainer.learning_rate"], told["explorer.http_port"]) == ("0.5", "")
    assert len(told["mesh.model_path"]) == 300
    assert set(told) == {path for path, field in setting_fields().items() if not is_secret(field)}
    # All that any service could tell is a record.
    beat = TrainerHeartbeat(
        trainer="t", incarnation="i", model="m", state="ready", step=0, version=0, master_address="h", master_port=1,
        settings=told,
    )  # fmt: skip
    assert decode(encode(beat), TrainerHeartbeat) == beat
    stages = [{"stage": "sft", "loss": "sft", "total_steps": 3}, {"stage": "rl", "kl_coef": 0.5, "limited": True}]
    settings = Settings(trainer=TrainerSettings(advantage="rloo", stages=stages))
    told = told_settings(settings, "trainer")
    paths = ["trainer.advantage", "trainer.stages", "trainer.overlong_buffer", "trainer.none"]
    assert values_told(told, paths) == {"trainer.advantage": "rloo", "trainer.stages": stages}
    with pytest.raises(ConfigError, match=r"what was told of a\.b is no value"):
        values_told({"a.b": '"cut'}, ["a.b"])


@pytest.mark.parametrize("service", ["coordinator", "explorer", "trainer"])
def test_what_a_service_tells_is_small(service: str) -> None:
    told = told_settings(Settings(), "mesh", service, "synchronizer")
    assert {path.partition(".")[0] for path in told} == {"mesh", service, "synchronizer"}
    assert sum(len(path) + len(value) for path, value in told.items()) < 16_384
