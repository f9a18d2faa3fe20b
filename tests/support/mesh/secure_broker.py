"""The embedded broker with listeners of other kinds beside its own: what it never has outside of tests."""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.mesh.mesh import own_broker
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.waiting import wait_until
from trinity_bus.broker import EmbeddedBroker, java, layout, node
from trinity_bus.broker.layout import Folder
from trinity_bus.runtime.ports import is_free

CLUSTER_ID = "c2VjdXJlLWJyb2tlci0wMQ"


@contextlib.contextmanager
def secure_broker(
    folder: Path,
    listeners: Mapping[str, str],
    properties: Mapping[str, object],
    format_options: Sequence[str] = (),
) -> Iterator[dict[str, str]]:
    """A broker with these listeners, name to protocol, for the length of the block; gives name to address.

    Its own listener goes on to serve without any check.
    """
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(listeners, quiet_ports(len(listeners)), strict=True)}
    plain_properties = layout.server_properties

    def with_listeners(*args: Any, **kwargs: Any) -> dict[str, object]:
        own = plain_properties(*args, **kwargs)
        more = [f"{name}://{address}" for name, address in addresses.items()]
        for setting in ("listeners", "advertised.listeners"):
            own[setting] = ",".join([str(own[setting]), *more])
        protocols = [f"{name}:{protocol}" for name, protocol in listeners.items()]
        setting = "listener.security.protocol.map"
        own[setting] = ",".join([str(own[setting]), *protocols])
        return own | dict(properties)

    def with_options(folder: Folder, classpath: list[Path], heap_mib: int) -> None:
        arguments = ["format", f"--cluster-id={CLUSTER_ID}", "--config", folder.properties.name, *format_options]
        command = java.command("kafka.tools.StorageTool", arguments, classpath, heap_mib=heap_mib)
        subprocess.run(command, cwd=folder.root, env=java.environment(), capture_output=True, check=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "server_properties", with_listeners)
        if format_options:
            # What is kept for all new folders knows nothing of them, and must not learn it.
            patch.setattr(node, "format_folder", with_options)
        with EmbeddedBroker(own_broker(folder)):
            # The broker opens its listeners one after the other, and is ready for others at the first.
            for name, address in addresses.items():
                port = int(address.rpartition(":")[2])
                wait_until(lambda port=port: not is_free(port), f"listener {name}")  # type: ignore[misc]  # of a lambda with a default
            yield addresses
