"""What each service needs of its settings before it starts, beyond what is wrong with any of them by itself.

A service asks :func:`ensure` before it does anything else; ``trinity-bus config check`` asks :func:`problems`.

:func:`memory` says what services need of this machine's memory, where they compute on its CPUs. It is asked by whoever
knows that they are to run here: ``config check``, ``doctor``, ``up`` and the console.
"""

import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from trinity_bus.bus.client.connection import client_options
from trinity_bus.config import Origins, Settings, SynchronizerSettings, WrongSettingsError, required
from trinity_bus.config.mesh import TAKES_PART
from trinity_bus.config.sections import Sections
from trinity_bus.config.values import MIN_KEY_CHARS
from trinity_bus.coordination.sync_policy import SyncPolicy
from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.hub import checked, model_folder
from trinity_bus.runtime.device import is_installed_for_cpu
from trinity_bus.runtime.free_memory import free_bytes, total_bytes
from trinity_bus.runtime.ports import is_loopback
from trinity_bus.sizing.memory import HostMemory, host_memory
from trinity_bus.training.families import ModelShape, read_shape
from trinity_bus.training.objectives import registry
from trinity_bus.training.ranks.launch import launch_of


def model_path(settings: Sections) -> Path:
    return checked(required(settings.mesh.model_path, "mesh.model_path", "to start with"))


def explored_model_path(settings: Sections) -> Path:
    """Return the folder of the model that an explorer starts from."""
    return checked(required(settings.explorer.model_path, "mesh.model_path", "to start with"))


def gateway_model_path(settings: Sections) -> Path:
    """Return the folder of the model whose tokenizer a gateway writes with."""
    return checked(required(settings.gateway.model_path, "mesh.model_path", "to start with"))


def checkpoint_dir(settings: Sections) -> Path:
    return required(settings.trainer.checkpoint_dir, "trainer.checkpoint_dir", "to go on after a restart")


def dataset(settings: Sections) -> Path:
    """Return the file of the tasks to train on."""
    return required(settings.taskset.path, "taskset.path", "to have tasks to produce")


def sync_policy(settings: Sections) -> SyncPolicy:
    return SyncPolicy.of(settings.synchronizer, settings.coordinator)


def pull_certificate(sync: SynchronizerSettings) -> ssl.SSLContext | None:
    """Return what encrypts pulls of weights; None where nothing does."""
    if sync.tls_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without a password, it would ask for one on the terminal.
        context.load_cert_chain(sync.tls_certfile, sync.tls_keyfile, password=str)
    except (OSError, ValueError) as error:
        raise ConfigError(f"synchronizer.tls_certfile or its key cannot be used: {error}") from None
    return context


def _takes_part(service: str) -> Callable[[Sections], None]:
    def check(settings: Sections) -> None:
        mode = settings.mesh.mode
        if mode not in TAKES_PART[service]:
            raise ConfigError(f"mesh.mode is {mode}, which has no {service}; see docs/pools.md")

    return check


def _has_a_pool(settings: Sections) -> None:
    if settings.mesh.mode == "both" and settings.explorer.follows == "none" and settings.explorer.is_in_own_pool:
        raise ConfigError(
            "explorer.follows is none: beside a trainer it needs a pool of its own, explorer.pool; without one, set "
            "mesh.mode to explore, bench or serve"
        )


def _draws(settings: Sections) -> None:
    own = settings.explorer
    if own.temperature == 0 and settings.mesh.mode in ("both", "explore") and not own.is_in_own_pool:
        raise ConfigError("explorer.temperature is 0: what is drawn so is never trained on; 1 is usual")


def _server_takes_checkpoints(settings: Sections) -> None:
    own, method = settings.explorer, settings.synchronizer.sync_method
    if own.engine_url is not None and own.follows != "none" and method != "checkpoint":
        raise ConfigError(
            f"explorer.engine_url is set, and synchronizer.sync_method is {method}: a server takes versions from "
            "checkpoints that it sees; set sync_method to checkpoint, or explorer.follows to none"
        )


def _server_tells_routes(settings: Sections) -> None:
    if settings.explorer.engine_url is not None and settings.explorer.capture_routes:
        raise ConfigError(
            "explorer.engine_url is set, and explorer.capture_routes: a server's /v1/completions does not tell which "
            "experts were chosen; unset one of them"
        )


def _server_has_its_options(settings: Sections) -> None:
    if settings.explorer.engine_url is not None and settings.explorer.engine_options:
        raise ConfigError(
            "explorer.engine_url is set, and explorer.engine_options: those are for an engine of its own; give them to "
            "the server where it is started"
        )


def _adapters(settings: Sections) -> None:
    rank, own, method = settings.mesh.adapter_rank, settings.trainer, settings.synchronizer.sync_method
    if not rank:
        return
    asked = f"mesh.adapter_rank is {rank}"
    if method == "checkpoint":
        raise ConfigError(
            f"{asked}, and synchronizer.sync_method is checkpoint, where explorers, and servers of "
            "explorer.engine_url, find merged weights: set it to nccl or memory, or adapter_rank to 0"
        )
    if own.stages:
        raise ConfigError(f"{asked}: explorers have the model that training begins with: leave trainer.stages empty")


def _trains_adapters(settings: Sections) -> None:
    rank, trained = settings.mesh.adapter_rank, settings.trainer.lora_rank
    if rank and not 0 < trained <= rank:
        raise ConfigError(
            f"mesh.adapter_rank is {rank}, and trainer.lora_rank is {trained}: adapters of 1 to {rank} dimensions can "
            "be published"
        )


def _http_side(settings: Sections) -> None:
    if settings.explorer.http_port is not None or settings.explorer.auxiliary_pools is not None:
        explorer_key(settings)


def explorer_key(settings: Sections) -> str:
    """Return what gateways show to explorers."""
    return _key(settings.explorer.http_key, "explorer.http_key", "for gateways and explorers to know each other by")


def _key(given: SecretStr | None, path: str, purpose: str) -> str:
    key = required(given, path, purpose)
    if len(key) < MIN_KEY_CHARS:
        raise ConfigError(f"{path} has {len(key)} characters, and needs {MIN_KEY_CHARS} or more")
    return key.get_secret_value()


def gateway_keys(settings: Sections) -> dict[str, str]:
    """Return the keys of a gateway's clients, and under which name each is known."""
    keys = required(settings.gateway.api_keys, "gateway.api_keys", "for clients to be known by").get_secret_value()
    named: dict[str, str] = {}
    for number, one in enumerate(part for part in re.split(r"[\s,]+", keys) if part):
        name, told, key = one.rpartition(":")
        if told and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", name):
            raise ConfigError(f"gateway.api_keys: name {number} has something beside 32 letters, digits and ._-")
        if len(key) < MIN_KEY_CHARS:
            raise ConfigError(f"gateway.api_keys: key {number} has less than {MIN_KEY_CHARS} characters")
        if key in named:
            raise ConfigError(f"gateway.api_keys: key {number} is there twice")
        named[key] = name if told else f"client-{number}"
    if not named:
        raise ConfigError("gateway.api_keys has no key")
    return named


def _console_reach(settings: Sections) -> None:
    own = settings.console
    if not is_loopback(own.host) and own.token is None and own.viewer_token is None and own.user_header is None:
        raise ConfigError(
            f"console.host is {own.host}, which others reach: set console.token, or console.user_header for a proxy "
            "that says who asks"
        )


def _connection(settings: Sections) -> None:
    # Unset, a command looks for the embedded broker.
    if settings.kafka.bootstrap_servers is not None:
        client_options(settings.kafka, "")


def _trained_dtype(settings: Sections) -> None:
    if settings.mesh.dtype == "float16":
        raise ConfigError("mesh.dtype is float16: the trainer trains in bfloat16 or float32")


def _ranks(settings: Sections) -> None:
    if settings.trainer.engine == "torch" and settings.trainer.ranks > 1:
        raise ConfigError(
            "trainer.engine=torch trains on one rank; trainer.tensor_parallel, .pipeline_parallel and .data_parallel "
            f"ask for {settings.trainer.ranks}"
        )


def ranks_key(settings: Sections) -> str:
    """Return what ranks that a launcher has started show each other."""
    purpose = "for ranks that a launcher has started to know each other by"
    return _key(settings.trainer.ranks_key, "trainer.ranks_key", purpose)


def _launched(settings: Sections) -> None:
    launch, own = launch_of(os.environ), settings.trainer
    if launch is None:
        return
    if not own.stages and launch.world_size != own.ranks:
        raise ConfigError(
            f"WORLD_SIZE={launch.world_size}: as many ranks were launched, and trainer.tensor_parallel, "
            f".pipeline_parallel, .context_parallel and .data_parallel ask for {own.ranks}: let both be the same; "
            "without a launcher the trainer starts its ranks itself"
        )
    if launch.restarts:
        raise ConfigError(
            f"TORCHELASTIC_MAX_RESTARTS={launch.restarts}: a launcher would start ranks anew that rank 0 knows nothing "
            "of: give it --max-restarts 0, and start all launchers anew when one has ended"
        )
    if launch.spans_machines and is_loopback(own.ranks_host):
        raise ConfigError(
            f"trainer.ranks_host is {own.ranks_host}, and {launch.world_size - launch.local_world_size} of "
            f"{launch.world_size} ranks are on other machines: set an address of rank 0's machine that they reach"
        )
    ranks_key(settings)


def _publishes(settings: Sections) -> None:
    if settings.trainer.publish == "staged" and settings.synchronizer.sync_method == "checkpoint":
        raise ConfigError(
            "trainer.publish is staged, and synchronizer.sync_method is checkpoint: a version that is taken from its "
            "checkpoint can be had when that is durable; set sync_method to nccl or memory, or publish to durable"
        )


def _shadows(settings: Sections) -> None:
    trainer = settings.trainer
    if trainer.role == "shadow" and trainer.name == trainer.shadows:
        raise ConfigError(
            f"trainer.name and trainer.shadows are both {trainer.name}: give the shadow a name of its own"
        )
    if trainer.role == "shadow" and trainer.stages:
        raise ConfigError("trainer.role is shadow: a shadow follows one training: leave trainer.stages empty")


# What each service asks for; each raises ``ConfigError``
PRECONDITIONS: Final[Mapping[str, tuple[Callable[[Sections], object], ...]]] = {
    "coordinator": (_connection, sync_policy),
    "explorer": (
        _takes_part("explorer"),
        _connection,
        explored_model_path,
        _has_a_pool,
        _draws,
        _server_takes_checkpoints,
        _server_tells_routes,
        _server_has_its_options,
        _adapters,
        _http_side,
    ),
    "trainer": (
        _takes_part("trainer"),
        _connection,
        model_path,
        checkpoint_dir,
        _trained_dtype,
        lambda settings: registry.check(settings.trainer),
        _ranks,
        _launched,
        _shadows,
        _publishes,
        _adapters,
        _trains_adapters,
        sync_policy,
        lambda settings: pull_certificate(settings.synchronizer),
    ),
    "taskset": (_takes_part("taskset"), _connection, dataset),
    "console": (_connection, _console_reach),
    "gateway": (_takes_part("gateway"), _connection, gateway_model_path, explorer_key, gateway_keys),
}


def refusals(service: str, settings: Sections) -> list[str]:
    """Return what a service would refuse, one line each, with settings by their places."""
    found = []
    for precondition in PRECONDITIONS[service]:
        try:
            precondition(settings)
        except ConfigError as error:
            found.append(str(error))
    return found


def problems(service: str, settings: Sections) -> list[str]:
    """Return what a service would refuse, one line each, with settings by where they come from."""
    return [Origins(Settings).told(problem) for problem in refusals(service, settings)]


def memory(services: Sequence[str], settings: Sections) -> HostMemory | None:
    """Return what services need of this machine's memory; None where that is not known.

    It is not where GPUs are used, a model is not here, or the system does not tell of its memory. Kinds of ``services``
    stand there as often as they run here; the embedded broker is added where it is used.
    """
    total, free = total_bytes(), free_bytes()
    if total is None or free is None or not is_installed_for_cpu():
        return None
    models = {"trainer": settings.mesh.model_path, "explorer": settings.explorer.model_path}
    shapes: dict[str, ModelShape] = {}
    for name in models.keys() & set(services):
        path = models[name]
        try:
            if path is None:
                return None
            shapes[name] = read_shape(model_folder(path, weights=False, fetch=False))
        except (TrinityError, OSError):
            # Said by those who are to read it.
            return None
    brokers = ["kafka"] * (settings.kafka.bootstrap_servers is None)
    return host_memory([*services, *brokers], settings, shapes, total, free)


def ensure(service: str, settings: Sections) -> None:
    """Raise WrongSettingsError with all settings with which a service cannot start."""
    if found := problems(service, settings):
        raise WrongSettingsError(found)
