from pathlib import Path

import pytest

from trinity_bus.config import Origins, Settings, WrongSettingsError
from trinity_bus.errors import ConfigError
from trinity_bus.hub import checked


@pytest.fixture
def mesh_toml(no_settings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "mesh.toml"
    monkeypatch.setenv("TRINITY_BUS_CONFIG", str(file))
    return file


def test_the_environment_counts_more_than_the_file(mesh_toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh_toml.write_text('[mesh]\nnamespace = "team-a"\nmodel = "m"\n\n[coordinator]\nbatch_size = 3\n')
    monkeypatch.setenv("TRINITY_BUS_MESH__MODEL", "n")
    monkeypatch.setenv("TRINITY_BUS_COORDINATOR__GROUP_SIZE", "5")
    settings = Settings()
    assert settings.kafka.namespace == "team-a"
    assert settings.coordinator.model == "n"
    assert (settings.coordinator.batch_size, settings.coordinator.group_size) == (3, 5)
    origins = Origins(Settings)
    assert origins.of("mesh.namespace") == f"{mesh_toml}:2"
    assert origins.of("mesh.model") == "TRINITY_BUS_MESH__MODEL"
    assert origins.of("coordinator.batch_size") == f"{mesh_toml}:6"
    assert origins.of("coordinator.tick_s") is None


def test_a_path_may_be_at_home_and_what_is_empty_is_unset(
    mesh_toml: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ca.pem").touch()
    mesh_toml.write_text(
        '\ufeff[trainer]\ncheckpoint_dir = "~/a"\nexport_dir = ""\n[kafka]\nssl_cafile = "~/ca.pem"\n'
        '[explorer]\nworkflow_modules = "a, b"\nrunners = ""\n'
    )
    monkeypatch.setenv("TRINITY_BUS_TELEMETRY__RUN_DIR", "~/b")
    settings = Settings()
    assert (settings.trainer.checkpoint_dir, settings.telemetry.run_dir) == (tmp_path / "a", tmp_path / "b")
    assert (settings.trainer.export_dir, settings.explorer.runners) == (None, 1)
    assert settings.kafka.ssl_cafile == tmp_path / "ca.pem"
    assert Origins(Settings).of("trainer.checkpoint_dir") == f"{mesh_toml}:2"
    assert checked("~/model") == tmp_path / "model"


def test_every_mistake_is_told_with_its_line(mesh_toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh_toml.write_text(
        "kafka.namespace = 'a'\n[coordinator]\nbatchsize = 3\ngroup_size = 0\nmodel = 'm'\n[coordinater]\nx = 1\n"
        "[trainer]\nseed = 'x'\n"
    )
    monkeypatch.setenv("TRINITY_BUS_TRAINER__SEED", "-1")
    with pytest.raises(WrongSettingsError) as caught:
        Settings()
    assert caught.value.problems == [
        f"{mesh_toml}:1: kafka.namespace is not a setting; did you mean mesh.namespace?",
        f"{mesh_toml}:3: coordinator.batchsize is not a setting; did you mean coordinator.batch_size?",
        f"{mesh_toml}:5: coordinator.model is not a setting; did you mean mesh.model?",
        f"{mesh_toml}:6: coordinater is not a section; did you mean coordinator?",
        f"{mesh_toml}:4: coordinator.group_size=0: input should be greater than or equal to 1",
        "TRINITY_BUS_TRAINER__SEED='-1': input should be greater than or equal to 0",
    ]
    assert "\n" not in str(caught.value)


def test_a_secret_of_the_file_is_not_shown_and_refused_where_others_may_read_it(mesh_toml: Path) -> None:
    mesh_toml.write_text("[kafka]\nsasl_password = 17\nsasl_passwrod = 'hunter2'\n")
    mesh_toml.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        Settings()
    assert f"{mesh_toml}:2: kafka.sasl_password=(secret): input should be a valid string" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    mesh_toml.write_text("[mesh]\nmodel = 'm'\n[kafka]\nsasl_password = 'hunter2'\n")
    for mode in (0o644, 0o640, 0o604, 0o660):
        mesh_toml.chmod(mode)
        with pytest.raises(ConfigError, match="is a secret, and others may read") as caught:
            Settings()
        assert str(caught.value) == (
            f"{mesh_toml}:4: kafka.sasl_password is a secret, and others may read or write the file (mode {mode:04o}): "
            f"chmod 600 {mesh_toml}, or name a file of the secret with TRINITY_BUS_KAFKA__SASL_PASSWORD_FILE"
        )
    mesh_toml.chmod(0o600)
    assert Settings().kafka.sasl_password is not None
    mesh_toml.write_text("[mesh]\nmodel = 'm'\n")
    mesh_toml.chmod(0o644)
    assert Settings().mesh.model == "m"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no such file; give the path of a readable file"),
        (b"[mesh\n", r"this is not TOML: .* \(at line 1"),
        (b"\xff", "the file is not UTF-8 text"),
        (b"#" * (1 << 21), "the file is too large"),
        (b"kafka = 3\n", r"mesh.toml:1: kafka=\(not shown\): input should be a valid dictionary"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(mesh_toml: Path, content: bytes | None, complaint: str) -> None:
    if content is not None:
        mesh_toml.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint) as caught:
        Settings()
    assert str(mesh_toml) in str(caught.value)


def test_settings_that_contradict_are_told_with_their_origins(mesh_toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.config.sources.OPTIONS", {"kafka.security_protocol"})
    mesh_toml.write_text(
        "[mesh]\nmax_tokens = 2048\n[coordinator]\nheartbeat_s = 2\n[synchronizer]\ntls_cafile = 'mesh.toml'\n"
    )
    monkeypatch.chdir(mesh_toml.parent)
    monkeypatch.setenv("TRINITY_BUS_KAFKA__SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("TRINITY_BUS_MESH__MAX_MODEL_LEN", "100")
    monkeypatch.setenv("TRINITY_BUS_SYNCHRONIZER__SYNC_METHOD", "checkpoint")
    with pytest.raises(WrongSettingsError) as caught:
        Settings()
    assert caught.value.problems == [
        (
            f"mesh.max_tokens ({mesh_toml}:2) is 2048, which leaves no room for prompts: "
            "TRINITY_BUS_MESH__MAX_MODEL_LEN is 100"
        ),
        "kafka.sasl_username is not set: --set kafka.security_protocol is SASL_SSL",
        (f"coordinator.takeover_s is 1.5, not more than twice coordinator.heartbeat_s ({mesh_toml}:4), which is 2.0"),
        (
            f"synchronizer.tls_cafile ({mesh_toml}:6) is set, and TRINITY_BUS_SYNCHRONIZER__SYNC_METHOD is checkpoint, "
            "which cannot be encrypted: only memory can"
        ),
    ]
