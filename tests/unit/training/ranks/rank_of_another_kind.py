"""A fake rank: it follows ``rank_protocol`` without an engine, and misbehaves in ``Load`` as its path says."""

import os
import signal
import socket
import sys
import time

from trinity_bus.runtime.frames import read_frame
from trinity_bus.training.ranks import rank_protocol as protocol
from trinity_bus.training.ranks.rank_protocol import Done, Failed, Leave, Load, Train

channel, rank = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
file = channel.makefile("rb")
steps = 0
while (payload := read_frame(file, protocol.CALLS.limit)) is not None:
    call = protocol.CALLS.decode(payload)
    answer: Done | Failed = Done(steps)
    match call:
        case Train((shard,)):
            received = [read_frame(file, protocol.SAMPLE_BYTES) for _ in range(shard.samples)]
            steps += 1
            # Each is given its own: one to the first, two to the second.
            answer = Done(steps) if received == [b"one", b"two"][:rank] else Failed(f"received {received}")
        case Load("die") if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        case Load("fail"):
            answer = Failed("no room")
        case Load("hang"):
            time.sleep(3600)
        case Load("drift"):
            answer = Done(steps + rank)
    channel.sendall(protocol.ANSWERS.frame(answer))
    if isinstance(call, Leave):
        break
