"""One end of a pull in a process of its own, to be killed: ``python -m tests.support.faults.pulls take|serve ...``.

``take HOST PORT CHECKSUM METHOD``: begins to take version 0, prints ``first`` after the first bucket, and stays there.
``serve HOST``: stages ``CHUNKED`` as version 0, prints ``PORT CHECKSUM``, sends three pieces to the first who asks,
prints ``amid``, and stays there.
"""

import sys

import torch

from tests.support.faults.transfers import SECRET, announcement, settled
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.pull import frames, server
from trinity_bus.weights.pull.transport import PullTransport
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.transport import Method, Source

CHUNKED = {f"w{i}": torch.full((1 << 19,), float(i)) for i in range(6)}
"""Six buckets of eight chunks."""


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def take(host: str, port: str, checksum: str, method: Method) -> None:
    original = PullTransport.fill

    def stay(_: int) -> None:
        say("first")
        sys.stdin.read()

    def fill_and_stay(self: PullTransport, buffers: list[torch.Tensor], _: object) -> None:
        original(self, buffers, stay)

    PullTransport.fill = fill_and_stay  # type: ignore[assignment, method-assign]
    receiver = WeightReceiver()
    receiver.start(
        Source(
            method=method,
            host=host,
            port=int(port),
            prefix="trainer-life/1/victim",
            version=0,
            checksum=checksum,
            secret=SECRET,
            timeout_s=60,
        )
    )
    settled(receiver, 60)


def serve(host: str) -> None:
    send = frames.send_piece
    sent = []

    def send_and_stay(channel: Channel, piece: memoryview) -> None:
        send(channel, piece)
        sent.append(piece)
        if len(sent) == 3:
            say("amid")
            sys.stdin.read()

    frames.send_piece = send_and_stay
    made = server.WeightServer(host, bucket_bytes=1 << 20)
    checksum = made.stage(0, CHUNKED.items())
    announcement(made, 0, checksum, "a")
    say(f"{made.address[1]} {checksum}")
    sys.stdin.read()


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    {"take": take, "serve": serve}[command](*arguments)  # type: ignore[operator]
