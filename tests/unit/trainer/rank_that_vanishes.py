"""Rank 0 and a rank, in a network of their own that is cut: no word of it comes to either. See test_launched_ranks."""

import fcntl
import os
import socket
import struct
import sys

_SET_FLAGS, _UP, _DOWN = 0x8914, 1, 0
KEY = "a key of some characters"
NOT_ALLOWED = 77


def loopback(flags: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", flags))


def main() -> None:
    # A process of several threads cannot have a network of its own any more, and imports start some.
    from trinity_bus.training.errors import RankError
    from trinity_bus.training.ranks.followers import Followers
    from trinity_bus.training.ranks.launch import Launch
    from trinity_bus.training.ranks.rank_protocol import Join
    from workers.trainer import launched_ranks

    launched_ranks.SILENCE_S = 2  # type: ignore[misc]  # so that a test need not wait for half a minute
    launch = Launch(rank=0, world_size=2, local_rank=0, local_world_size=1, restarts=0)
    ranks = launched_ranks.LaunchedRanks(launch, "127.0.0.1", (0,), KEY)
    rank = launched_ranks._connect(*ranks.address, 1, KEY)
    ranks.wait(2)
    followers = Followers(2, ranks)
    followers.begin(Join("1.0"))
    rank.receive(1000)
    loopback(_DOWN)
    try:
        followers.settle(0)
    except RankError as error:
        sys.stdout.write(f"{error}\n")
    rank.channel.wait_for_end()
    rank.receive(1000)
    sys.stdout.write(f"rank 0 is gone: {rank.why_ended}\n")
    sys.stdout.flush()
    os._exit(0)  # what is cut cannot be ended in order


if __name__ == "__main__":
    try:
        os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
        loopback(_UP)
    except OSError as refusal:
        sys.stderr.write(str(refusal))
        sys.exit(NOT_ALLOWED)
    main()
