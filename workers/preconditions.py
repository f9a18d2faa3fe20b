"""What each service needs of its settings before it starts, beyond what is wrong with any of them by itself.

A service asks :func:`ensure` before it does anything else; ``trinity-bus config check`` asks :func:`problems`.

:func:`memory` says what services need of this machine's memory, where they compute on its CPUs. It is asked by whoever
knows that they are to run here: ``config check``, ``doctor``, ``up`` and the console.
"""

import logging
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from trinity_bus.runtime.memory import free_bytes, total_bytes
from trinity_bus.runtime.object_store import ensure_known
from trinity_bus.runtime.ports import is_loopback
from trinity_bus.sizing.memory import HostMemory, host_memory
from trinity_bus.training.families import ModelShape, read_shape
from trinity_bus.training.objectives import registry
from trinity_bus.training.ranks.launch import launch_of

_log = logging.getLogger(__name__)


def initial_model(path: str | None) -> Path:
    """Return the folder of the model that a service starts from."""
    return checked(required(path, "mesh.model_path", "to start with"))


def checkpoint_dir(settings: Sections) -> Path:
    return required(settings.trainer.checkpoint_dir, "trainer.checkpoint_dir", "to go on after a restart")


def dataset(settings: Sections) -> Path:
    """Return the file of the tasks to train on."""
    return required(settings.taskset.path, "taskset.path", "to have tasks to produce")


def sync_policy(settings: Sections) -> SyncPolicy:
    return SyncPolicy.of(settings.synchronizer, settings.coordinator)


def object_url(sync: SynchronizerSettings) -> str:
    """Return where versions are that come by way of an object store."""
    url = required(sync.object_url, "synchronizer.object_url", "to know where versions are")
    ensure_known(url)
    return url.rstrip("/")


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


def ranks_key(settings: Sections) -> str:
    """Return what ranks that a launcher has started show each other."""
    purpose = "for ranks that a launcher has started to know each other by"
    return _key(settings.trainer.ranks_key, "trainer.ranks_key", purpose)


def _explorer(settings: Sections) -> Iterator[str]:
    own, mode, method = settings.explorer, settings.mesh.mode, settings.synchronizer.sync_method
    yield from _lacking(settings, lambda _: initial_model(own.model_path))
    if mode == "both" and own.follows == "none" and own.is_in_own_pool:
        yield (
            "explorer.follows is none: beside a trainer it needs a pool of its own, explorer.pool; without one, set "
            "mesh.mode to explore, bench or serve"
        )
    if own.temperature == 0 and mode in ("both", "explore") and not own.is_in_own_pool:
        yield "explorer.temperature is 0: what is drawn so is never trained on; 1 is usual"
    if own.engine_url is not None and own.follows != "none" and method != "checkpoint":
        yield (
            f"explorer.engine_url is set, and synchronizer.sync_method is {method}: a server takes versions from "
            "checkpoints that it sees; set sync_method to checkpoint, or explorer.follows to none"
        )
    if method == "object" and own.follows != "none":
        yield from _lacking(settings, lambda _: object_url(settings.synchronizer))
    if own.engine_url is None and own.engine_router is not None:
        yield "explorer.engine_router is set, and explorer.engine_url is not: name the servers behind it there"
    if own.engine_url is not None and own.engine_options:
        yield (
            "explorer.engine_url is set, and explorer.engine_options: those are for an engine of its own; give them to "
            "the server where it is started"
        )
    yield from _adapters(settings)
    if own.http_port is not None or own.auxiliary_pools is not None:
        yield from _lacking(settings, explorer_key)


def _adapters(settings: Sections) -> Iterator[str]:
    asked = f"mesh.adapter_rank is {settings.mesh.adapter_rank}"
    if settings.mesh.adapter_rank and settings.synchronizer.sync_method == "checkpoint":
        yield (
            f"{asked}, and synchronizer.sync_method is checkpoint, where explorers, and servers of "
            "explorer.engine_url, find merged weights: set it to nccl or memory, or adapter_rank to 0"
        )
    elif settings.mesh.adapter_rank and settings.trainer.stages:
        yield f"{asked}: explorers have the model that training begins with: leave trainer.stages empty"


def _trainer(settings: Sections) -> Iterator[str]:
    own, rank = settings.trainer, settings.mesh.adapter_rank
    yield from _lacking(settings, lambda _: initial_model(settings.mesh.model_path), checkpoint_dir)
    if settings.mesh.dtype == "float16":
        yield "mesh.dtype is float16: the trainer trains in bfloat16 or float32"
    yield from _lacking(settings, lambda _: registry.check(own))
    if own.engine == "torch" and own.ranks > 1:
        yield (
            "trainer.engine=torch trains on one rank; trainer.tensor_parallel, .pipeline_parallel and .data_parallel "
            f"ask for {own.ranks}"
        )
    yield from _lacking(settings, _launched)
    if own.role == "shadow" and own.name == own.shadows:
        yield f"trainer.name and trainer.shadows are both {own.name}: give the shadow a name of its own"
    elif own.role == "shadow" and own.stages:
        yield "trainer.role is shadow: a shadow follows one training: leave trainer.stages empty"
    if own.publish == "staged" and settings.synchronizer.sync_method == "checkpoint":
        yield (
            "trainer.publish is staged, and synchronizer.sync_method is checkpoint: a version that is taken from its "
            "checkpoint can be had when that is durable; set sync_method to nccl or memory, or publish to durable"
        )
    yield from _adapters(settings)
    if rank and not 0 < own.lora_rank <= rank:
        yield (
            f"mesh.adapter_rank is {rank}, and trainer.lora_rank is {own.lora_rank}: adapters of 1 to {rank} "
            "dimensions can be published"
        )
    yield from _lacking(settings, sync_policy, lambda _: pull_certificate(settings.synchronizer))
    if settings.synchronizer.sync_method == "object":
        yield from _lacking(settings, lambda _: object_url(settings.synchronizer))
    if (url := own.checkpoint_url) is not None:
        yield from _lacking(settings, lambda _: ensure_known(url))


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


def _console(settings: Sections) -> Iterator[str]:
    own = settings.console
    if not is_loopback(own.host) and own.token is None and own.viewer_token is None and own.user_header is None:
        yield (
            f"console.host is {own.host}, which others reach: set console.token, or console.user_header for a proxy "
            "that says who asks"
        )


def _gateway(settings: Sections) -> Iterator[str]:
    yield from _lacking(settings, lambda _: initial_model(settings.gateway.model_path), explorer_key, gateway_keys)


def _lacking(settings: Sections, *needs: Callable[[Sections], object]) -> Iterator[str]:
    for need in needs:
        try:
            need(settings)
        except ConfigError as error:
            yield str(error)


# What each service refuses, beside a mode that has no such service and a connection that cannot be made
PRECONDITIONS: Final[Mapping[str, Callable[[Sections], Iterator[str]]]] = {
    "coordinator": lambda settings: _lacking(settings, sync_policy),
    "explorer": _explorer,
    "trainer": _trainer,
    "taskset": lambda settings: _lacking(settings, dataset),
    "console": _console,
    "gateway": _gateway,
}


def refusals(service: str, settings: Sections) -> list[str]:
    """Return what a service would refuse, one line each, with settings by their places."""
    found = []
    mode = settings.mesh.mode
    if service in TAKES_PART and mode not in TAKES_PART[service]:
        found.append(f"mesh.mode is {mode}, which has no {service}; see docs/pools.md")
    if settings.kafka.bootstrap_servers is not None:  # unset, a command looks for the embedded broker
        found += _lacking(settings, lambda _: client_options(settings.kafka, ""))
    return [*found, *PRECONDITIONS[service](settings)]


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
    """Raise WrongSettingsError with all settings with which a service cannot start; warn of what it leaves out."""
    if found := problems(service, settings):
        raise WrongSettingsError(found)
    if (lost := left_out(service, settings)) is not None:
        _log.warning("%s", lost)


def left_out(service: str, settings: Sections) -> str | None:
    """Return which samples are left out of training with these settings, where it is they that leave them out."""
    own, limited = settings.explorer, settings.trainer.limited_sampling
    asks_servers = own.engine_url is not None and own.is_in_own_pool and own.follows != "none"
    if service not in ("explorer", "trainer") or not asks_servers or limited == "train":
        return None
    return (
        f"explorer.engine_url is set, and trainer.limited_sampling is {limited}: samples drawn with top_p, top_k or "
        "min_p are left out of training unless the servers tell which tokens these kept, as vllm serve "
        "--return-sampling-mask does on GPUs (docs/pools.md); an explorer's own engine always does"
    )
