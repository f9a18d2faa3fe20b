"""Machines with one network card each, on one machine: namespaces on a bridge, each behind a token bucket.

::

    namespace of a machine: nic (tbf: what it sends) <--veth--> port (tbf: what it receives) on the bridge, in the hub's

Rights of root, ``ip`` and ``tc`` are needed; :func:`why_not` says what is lacking.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_BURST = "256kb"
"""What a card may send at once: a segment as the kernel makes them, and little more."""


def why_not() -> str | None:
    """Return why there can be no such network here; None where there can be."""
    if lacking := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"{' and '.join(lacking)} (iproute2) is not installed"
    name = f"fan-out-{os.getpid()}-probe"
    try:
        with _namespace(name):
            _do(f"ip -n {name} link add name hub0 type bridge")
            _do(f"ip -n {name} link add name one type veth peer name other")
            _do(f"tc -n {name} qdisc add dev one root tbf rate 1mbit burst {_BURST} latency 50ms")
    except subprocess.CalledProcessError as error:
        return f"a network namespace cannot be made: {error.stderr.strip()}"
    return None


@contextmanager
def network(machines: int, mbit_s: int) -> Iterator[list[tuple[str, str]]]:
    base, made = f"fan-out-{os.getpid()}", []
    with ExitStack() as open_ones:
        hub = f"{base}-hub"
        open_ones.enter_context(_namespace(hub))
        _do(f"ip -n {hub} link add name hub0 type bridge")
        _do(f"ip -n {hub} link set hub0 up")
        for number in range(machines):
            name, address, port = f"{base}-{number}", f"10.77.0.{number + 1}", f"port{number}"
            open_ones.enter_context(_namespace(name))
            _do(f"ip -n {name} link add name nic type veth peer name {port} netns {hub}")
            _do(f"ip -n {name} addr add {address}/24 dev nic")
            _do(f"ip -n {hub} link set {port} master hub0 up")
            for where, device in ((name, "nic"), (hub, port)):
                _do(f"ip -n {where} link set {device} up")
                _do(f"tc -n {where} qdisc add dev {device} root tbf rate {mbit_s}mbit burst {_BURST} latency 50ms")
            _do(f"ip -n {name} link set lo up")
            made.append((name, address))
        yield made


def enter(namespace: str) -> None:
    descriptor = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    try:
        os.setns(descriptor, os.CLONE_NEWNET)
    finally:
        os.close(descriptor)


@contextmanager
def _namespace(name: str) -> Iterator[None]:
    _do(f"ip netns add {name}")
    try:
        yield
    finally:
        _do(f"ip netns del {name}")


def _do(command: str) -> str:
    done = subprocess.run(command.split(), check=True, capture_output=True, text=True)  # noqa: S603 - it is made here
    return done.stdout
