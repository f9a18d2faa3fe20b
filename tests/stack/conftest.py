"""The compose stack, up for the whole session: real containers of every service, as users run them."""

import fcntl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mesh.compose import (
    BUILD_LIMIT_S,
    OPTIONAL,
    UP_LIMIT_S,
    ComposeStack,
    Images,
    images,
    new_secure_stack,
    new_stack,
    why_not,
)

_FOUND: pytest.StashKey[Images] = pytest.StashKey()
_FIGURES: pytest.StashKey[dict[str, str]] = pytest.StashKey()
_NOT_RUN = "not run: the compose stack, its start, its training, its traces and metrics, the kills, its end: "


@pytest.fixture(scope="session")
def stack_images(request: pytest.FixtureRequest) -> Images:
    """The images that there are; skips where the stack cannot be without one that lacks."""
    reason = why_not()
    if reason is not None:
        pytest.skip(_NOT_RUN + reason)
    found = request.config.stash[_FOUND] = images()
    needed = {image for variable, image in found.missing.items() if variable not in OPTIONAL.values()}
    if needed:
        pytest.skip(f"{_NOT_RUN}no image {', '.join(sorted(needed))} is here, and none can be pulled")
    return found


@pytest.fixture(scope="session")
def _alone() -> Iterator[None]:
    """One session with stacks at a time on a machine: a second waits here for the first one's end."""
    with (Path(tempfile.gettempdir()) / "trinity-bus-stack.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def stack(_alone: None, stack_images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeStack]:
    """Images built, ``docker compose up --wait`` done, everything healthy; at the end ``down --volumes``."""
    folder = tmp_path_factory.mktemp("stack")
    yield from _up(new_stack(folder, stack_images), folder)


@pytest.fixture(scope="module")
def secure_stack(
    _alone: None, stack_images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComposeStack]:
    """Likewise with TLS, users and rights, for the tests of one file, before the session's stack is up."""
    folder = tmp_path_factory.mktemp("secure")
    yield from _up(new_secure_stack(folder), folder)


def _up(stack: ComposeStack, folder: Path) -> Iterator[ComposeStack]:
    stack.compose("build", limit_s=BUILD_LIMIT_S)
    try:
        began, stack.up_began = time.monotonic(), time.time()
        try:
            stack.compose("up", "--detach", "--wait", limit_s=UP_LIMIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{stack.complaints()}") from None
        stack.up_seconds = time.monotonic() - began
        yield stack
    finally:
        logs = folder / "logs.txt"
        logs.write_text(stack.compose("logs", "--no-color", "--timestamps"))
        print(f"what the containers said: {logs}")
        stack.compose("down", "--volumes")


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> dict[str, str]:
    """What tests measure, for people: printed at the end, never judged."""
    return request.config.stash.setdefault(_FIGURES, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the figures, and which images were not the published ones: the report is worth as much as they are."""
    for name, value in config.stash.get(_FIGURES, {}).items():
        terminalreporter.write_line(f"{name}: {value}")
    found = config.stash.get(_FOUND, None)
    if found is None:
        return
    for image in found.made_here.values():
        terminalreporter.write_line(f"not the published image, but one that was made on this machine: {image}")
    for image in found.missing.values():
        terminalreporter.write_line(f"not run, because it cannot be had here: {image}")
