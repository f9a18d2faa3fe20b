"""What workflow code is kept from: the environment that it is given, and the user that it runs as.

A fork server is started with an environment that is made of what is known to be harmless and of what the operator
names; the guard that it runs under has the same. It becomes another user, where one is set, before it imports a
workflow, and can never get back: neither by a program with a set-user-id bit nor by a capability.
"""

import os
import pwd
from collections.abc import Mapping

from trinity_bus.runtime.guard import prctl

_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"),
        *("PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONFAULTHANDLER", "VIRTUAL_ENV", "LD_LIBRARY_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"),
        *("TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "TRANSFORMERS_VERBOSITY", "TOKENIZERS_PARALLELISM"),
    }
)
_PREFIXES = ("LC_", "OMP_", "OPENBLAS_", "MKL_", "XDG_", "OTEL_")
# OpenTelemetry's headers carry the key of a collector.
_KEYS_SUFFIX = "_HEADERS"
# Threads of libraries do not survive a fork, and workflows have one core at most.
_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38


def environment(given: Mapping[str, str], more: str | None) -> dict[str, str]:
    """Return the environment of runners; ``more`` names variables that they are given too, separated by commas."""
    named = _NAMES if more is None else _NAMES | set(more.split(","))
    return _THREADS | {
        name: value
        for name, value in given.items()
        if name in named or (name.startswith(_PREFIXES) and not name.endswith(_KEYS_SUFFIX))
    }


def confine(user: str | None) -> None:
    """Give up what can be given up, for this process and all that it will start; become a user, by name or number.

    KeyError: there is no such user. OSError: this process may not become another one, or the kernel refused.
    """
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if user is None:
        return
    entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    os.initgroups(entry.pw_name, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    os.environ.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name)
    # Becoming another user closes a process to others of that user. There is nothing to hide here, and a runner has to
    # reach its own files in /proc.
    prctl(_PR_SET_DUMPABLE, 1)
