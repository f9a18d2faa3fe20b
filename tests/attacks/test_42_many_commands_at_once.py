"""A machine with many services, or long commands: orders to the process that forks them do not fit at once."""

import signal
from pathlib import Path

from tests.support.mesh.waiting import wait_until
from trinity_bus.runtime.preload import Preload

COMMANDS = 24
ARGUMENTS = ["x" * 1000] * 16


def test_commands_wait_until_there_is_room_for_their_orders(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with Preload.begin([], name="preload", main="signal:pause", output=output) as preload:
        wait_until(lambda: preload.loaded)
        commands = [
            preload.start(ARGUMENTS, name=f"command {number}", env={}, output=output) for number in range(COMMANDS)
        ]
        wait_until(lambda: all(command.started for command in commands))
        for command in commands:
            command.terminate()
        wait_until(lambda: all(command.poll() is not None for command in commands))
        assert {command.poll() for command in commands} == {-signal.SIGTERM}
