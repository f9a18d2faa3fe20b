"""How long a version takes to reach many members by ``memory``, over the time for one of them.

Real: the trainer's server, receivers as engines' workers have them, proofs of both ends, every byte hashed and proven.
Neither a broker nor engines: what is measured begins with the announcement in the members' hands, and ends when the
last one has all bytes, and their checksum is right.

``shaped``    each process in a network namespace of its own, as if it were a machine with one card of 200 Mbit/s, both
              ways. A trainer that sent to each by itself would take N times as long for N. Needs root and ``ip`` and
              ``tc``; left out, with a line, where they are not to be had.
``killed``    one member kills itself when it has half of the version: how much later the others have it. Who takes from
              whom is left to chance, so several are killed, one in each round.
``loopback``  all on this machine, nothing shaped, with fan-out and without it, in turns.

Of a version as large as SmolLM2's only the first and the last are measured, to no more than four members.
"""

import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks._fan_out.members import Receivers, Where, fleet
from benchmarks._fan_out.network import network, why_not
from benchmarks._options import parser, subjects_of
from benchmarks._report import Row, less, report
from trinity_bus.weights.layout import chunk_hash

MBIT_S = 200
FEW, MANY = 4, 16
FEW_GOAL, MANY_GOAL, KILL_GOAL, HASH_GOAL, BESIDE_GOAL = 1.15, 1.4, 1.1, 0.05, 1.1
_PIECE = 256 << 10


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int = 3
    kills: int = 4
    members: tuple[int, ...] = (1, FEW, MANY)
    nbytes: int = 48 << 20


SHORT = Size(rounds=1, kills=1, members=(1, 2), nbytes=4 << 20)


def scaling(size: Size, places: Sequence[Where]) -> tuple[list[Row], dict[int, float]]:
    cards = f"{MBIT_S} Mbit/s"
    times: dict[int, float] = {}
    rows = []
    for count in size.members:
        with fleet(places[: count + 1], size.nbytes) as members:
            times[count] = median(members, size.rounds)
        rows.append(less(f"{cards}, {count} members: until all have it", times[count], "s"))
        if count > 1:
            goal = {FEW: FEW_GOAL, MANY: MANY_GOAL}.get(count)
            title = f"{cards}, {count} members: over the time for one"
            rows.append(less(title, times[count] / times[1], "", goal))
    return rows, times


def shaped(size: Size) -> list[Row]:
    cards, most = f"{MBIT_S} Mbit/s", max(size.members)
    with network(most + 1, MBIT_S) as places:
        rows, times = scaling(size, places)
        killed = []
        for number in range(size.kills):
            with fleet(places, size.nbytes) as members:
                members.round()
                killed.append(members.round(victim=number * most // size.kills))
    others = f"{cards}, {most} members, one killed: the others have it, over nobody killed"
    rows.append(less(f"{others}, median", statistics.median(killed) / times[most], "", KILL_GOAL))
    rows.append(less(f"{others}, worst", max(killed) / times[most], ""))
    for what, digest in (("chunks", chunk_hash), ("bytes by SHA-256 at either end", sha256)):
        share = hashing(size.nbytes, digest) / times[1]
        rows.append(less(f"{cards}: hashing all {what}, over the transfer to one", share, "", HASH_GOAL))
    return rows


def loopback(size: Size) -> list[Row]:
    rows = []
    for count in (1, 2):
        places = [(None, "127.0.0.1")] * (count + 1)
        with fleet(places, size.nbytes) as new, fleet(places, size.nbytes, fan_out=False) as old:
            for members in (new, old):
                members.round()
            times: dict[Receivers, list[float]] = {new: [], old: []}
            for number in range(size.rounds * 6):
                # Each comes first as often as the other.
                for members in (new, old) if number % 2 else (old, new):
                    times[members].append(members.round())
        with_it, without = (statistics.median(times[members]) for members in (new, old))
        members_are = f"loopback, {count} member{'s' * (count > 1)}"
        rows.append(less(f"{members_are}: until all have it", with_it, "s"))
        rows.append(less(f"{members_are}: over the time without fan-out", with_it / without, "", BESIDE_GOAL))
    return rows


def median(members: Receivers, rounds: int) -> float:
    """Return the median of some rounds, after one that makes memory and listeners."""
    members.round()
    return statistics.median(members.round() for _ in range(rounds))


def sha256(piece: memoryview) -> bytes:
    """Return what a piece adds to the version's checksum, which both ends make beside the hashes of chunks."""
    return hashlib.sha256(piece).digest()


def hashing(nbytes: int, digest: Callable[[memoryview], bytes]) -> float:
    """Seconds of processor time for all pieces."""
    version = memoryview(bytearray(nbytes))
    began = time.thread_time()
    for start in range(0, nbytes, _PIECE):
        digest(version[start : start + _PIECE])
    return time.thread_time() - began


def main() -> None:
    options = parser(__doc__, subjects=True).parse_args()
    for subject, folder in subjects_of(options).items():
        size = SHORT if options.short else Size()
        if folder is not None:
            nbytes = (folder / "model.safetensors").stat().st_size
            few = tuple(count for count in size.members if count <= FEW)
            size = replace(size, rounds=1, members=few, nbytes=nbytes)
        notes = ["trainer, members and links share this machine's cores"]
        rows = loopback(size)
        lacking = why_not()
        if lacking is not None:
            notes.append(f"nothing is shaped: {lacking}")
        elif folder is None:
            rows = shaped(size) + rows
        else:
            with network(max(size.members) + 1, MBIT_S) as places:
                rows = scaling(size, places)[0] + rows
        title = f"{size.nbytes >> 20} MiB from the trainer to its members, by memory"
        report("fan_out", title, rows, options, subject=subject, notes=notes)


if __name__ == "__main__":
    main()
