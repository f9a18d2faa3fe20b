"""Models by the names that people give them: a folder, or a repository of a model hub.

=========================================  =========================================================================
``mesh.model_path``                        is
=========================================  =========================================================================
a folder                                   that folder
``organization/name``, ``...@revision``    the snapshot in the hub's cache (``HF_HOME``); the hub is asked for what
                                           is not there, and for nothing that is: to get a newer one, name its
                                           commit. Only configuration, tokenizer and safetensors are fetched
a GGUF file, a folder with nothing else    refused, with the line that makes a folder of it
=========================================  =========================================================================

The commit is part of a snapshot's path, so :func:`source_of` tells it of any folder. Token, endpoint and cache are
those of ``huggingface_hub``: ``HF_TOKEN``, ``HF_ENDPOINT``, ``HF_HOME``; with ``HF_HUB_OFFLINE=1`` it asks for nothing.

Failures: :class:`NotCachedError` where the hub may not be asked; else ``ConfigError``, with what the hub has said.
"""

import importlib
import json
import logging
import os
import re
import shlex
from pathlib import Path
from typing import Any, Final

from trinity_bus.config.sections import Sections
from trinity_bus.config.values import at_home
from trinity_bus.errors import ConfigError

log = logging.getLogger(__name__)

_NAME: Final = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>\w[\w./-]{0,99}))?", re.ASCII
)
_SNAPSHOT: Final = re.compile(r"models--([\w.-]+)--([\w.-]+)/snapshots/([0-9a-f]{40})", re.ASCII)
_DESCRIPTION: Final = ["*.json", "*.jinja", "*.txt", "*.model"]
_LEFT_OUT: Final = [*(f"*/{one}" for one in ("*.json", "*.txt", "*.model", "*.safetensors")), "consolidated*"]
"""Other formats of the same weights. Chat templates may be in a folder, ``additional_chat_templates``."""
_INDEX: Final = "model.safetensors.index.json"
_CONVERT: Final = (
    "import sys, transformers as t; d, f, o = sys.argv[1:]; g = dict(gguf_file=f); q = t.GgufConfig(dequantize=True); "
    't.AutoModelForCausalLM.from_pretrained(d, **g, dtype="float32", quantization_config=q).save_pretrained(o); '
    "t.AutoTokenizer.from_pretrained(d, **g).save_pretrained(o)"
)


class NotCachedError(ConfigError):
    """A model is on a hub, perhaps, and not here."""


def checked(name: str) -> Path:
    """Return a model's folder, or its name on a hub, as it was given.

    Raises:
        ConfigError: It is a GGUF, which is not read.
    """
    path = at_home(name)
    if path.suffix == ".gguf":
        raise _gguf(path)
    if path.is_dir() and not (path / "config.json").exists() and (found := sorted(path.glob("*.gguf"))):
        raise _gguf(found[0])
    return path


def _gguf(file: Path) -> ConfigError:
    words = ["python", "-c", _CONVERT, str(file.parent), file.name, str(file.with_suffix(""))]
    return ConfigError(
        f"{file} is a GGUF, whose weights are quantized for another engine; this makes a model folder of it, "
        f"{file.with_suffix('')} (with pip install gguf accelerate): {shlex.join(words)}"
    )


def model_folder(name: str, *, weights: bool, fetch: bool = True) -> Path:
    """Return the folder of a model. Blocks while it is fetched.

    Args:
        name: As ``mesh.model_path`` has it.
        weights: Whether they are needed; else configuration and tokenizer will do.
        fetch: Whether the hub may be asked for what is not here.

    Raises:
        ConfigError: See the module. Of a folder that does not exist it is for its reader to say so.
    """
    path = checked(name)
    match = None if path.exists() else _NAME.fullmatch(name)
    if match is None:
        return path
    client = _client()
    patterns = [*_DESCRIPTION, *(["*.safetensors"] if weights else [])]

    def snapshot(*, cached: bool) -> Path:
        return Path(
            client.snapshot_download(
                match["repository"],
                revision=match["revision"],
                allow_patterns=patterns,
                ignore_patterns=_LEFT_OUT,
                local_files_only=cached,
            )
        )

    try:
        folder = snapshot(cached=True)
        if not fetch or _is_whole(folder, weights=weights):
            return folder
    # Of what is not in the cache, or not all of it.
    except FileNotFoundError as error:
        if not fetch:
            raise NotCachedError(f"{name} is no folder, and not in the hub's cache") from error
    log.info("fetching %s", name)
    try:
        folder = snapshot(cached=False)
    # Its errors have no common base: those of HTTP, of the connection, of names, and of its own ways to transfer.
    except Exception as error:
        raise ConfigError(f"{name} is no folder, and cannot be had from the hub: {error}") from error
    if not _is_whole(folder, weights=weights):
        wanted = "config.json and model.safetensors, or the files of its index" if weights else "config.json"
        raise ConfigError(f"{name}: the repository lacks {wanted}; GGUF and pickled files are not read")
    log.info("%s is %s", name, source_of(folder))
    return folder


def _client() -> Any:
    """Return the hub's library, which reports nothing to anybody."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ConfigError(f"a model hub cannot be asked without huggingface_hub: {error}") from error


def _is_whole(folder: Path, *, weights: bool) -> bool:
    files = ["config.json"]
    if weights and (folder / _INDEX).exists():
        try:
            named = json.loads((folder / _INDEX).read_bytes())["weight_map"].values()
            files += {Path(file).name for file in named}
        except (ValueError, KeyError, TypeError, AttributeError):
            # It is all that there is: for who reads the weights to refuse.
            return True
    elif weights:
        files.append("model.safetensors")
    return all((folder / file).exists() for file in files)


def source_of(folder: Path) -> str | None:
    """Return the ``organization/name@commit`` of a snapshot in the hub's cache; None of another folder."""
    match = _SNAPSHOT.search(folder.absolute().as_posix())
    return None if match is None else f"{match[1]}/{match[2]}@{match[3]}"


def located[S: Sections](settings: S, *sections: str, weights: bool = True) -> S:
    """Return settings in which the models of some sections are folders; see :func:`model_folder`.

    Args:
        settings: All of them.
        sections: Such as ``"mesh"``.
        weights: See :func:`model_folder`.
    """
    found = {}
    for section in sections:
        own = getattr(settings, section)
        if own.model_path is not None:
            folder = model_folder(own.model_path, weights=weights)
            found[section] = own.model_copy(update={"model_path": str(folder)})
    return settings.model_copy(update=found)


def push(folder: Path, repository: str, *, branch: str | None, public: bool, message: str) -> str:
    """Write a model folder to a hub, in one commit.

    Args:
        folder: Of the model.
        repository: ``organization/name``; it is made where there is none.
        branch: Made likewise. Unset: the main one.
        public: Whether a repository that is made can be read by all.
        message: Of the commit.

    Returns:
        ``organization/name@commit``.

    Raises:
        ConfigError: The name is none, or the hub refuses, or cannot be reached.
    """
    match = _NAME.fullmatch(repository)
    if match is None or match["revision"] is not None:
        raise ConfigError(f"{repository!r} is no organization/name")
    api = _client().HfApi()
    try:
        api.create_repo(repository, private=not public, exist_ok=True)
        if branch is not None:
            api.create_branch(repository, branch=branch, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, folder_path=folder, revision=branch, commit_message=message)
    # As above.
    except Exception as error:
        raise ConfigError(f"{repository} cannot be written to the hub: {error}") from error
    return f"{repository}@{commit.oid}"
