"""How long a version takes to reach many members by ``memory``, and over links of gloo, over the time for one of them.

Real: the trainer's server, receivers as engines' workers have them, proofs of both ends, every byte hashed and proven.
Neither a broker nor engines: what is measured begins with the announcement in the members' hands, and ends when the
last one has all bytes, and their checksum is right.

``shaped``    each process in a network namespace of its own, as if it were a machine with one card of 200 Mbit/s, both
              ways. A trainer that sent to each by itself would take N times as long for N. Needs root and ``ip`` and
              ``tc``; left out, with a line, where they are not to be had.
``killed``    one member kills itself when it has half of the version: how much later the others have it. Who takes from
              whom is left to chance, so several are killed, one in each round.
``late``      some have a version, and others join: how long these take, and what the trainer's card has sent meanwhile.
              The same where one is killed amid it that sends it to one of them.
``slow``      the card of one member is a hundredth as fast, both ways: how much later the others have it. On slower
              cards, so that a transfer takes longer than it takes to find out. The round before has told what is usual.
``loopback``  all on this machine, nothing shaped, with fan-out and without it, in turns.

Of a version as large as SmolLM2's only the first and the last are measured, to no more than four members.
"""

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks._fan_out.members import FanOutMethod, Receivers, Where, fleet
from benchmarks._fan_out.network import network, reshape, sent, why_not
from benchmarks._options import parser, subjects_of
from benchmarks._report import Row, report
from trinity_bus.weights.layout import chunk_hash

MBIT_S = 200
SLOW_MBIT_S = 40
FEW, MANY = 4, 16
HAVE_IT, LATE = 8, 4
FEW_GOAL, MANY_GOAL, KILL_GOAL, SLOW_GOAL, HASH_GOAL, BESIDE_GOAL = 1.15, 1.4, 1.1, 1.1, 0.05, 1.1
LATE_GOAL, CARD_GOAL = 1.15, 0.05
_PIECE = 256 << 10
BY: dict[FanOutMethod, str] = {"memory": "", "gloo": "links, "}


def scaling(
    options: argparse.Namespace, places: Sequence[Where], nbytes: int, method: FanOutMethod
) -> tuple[list[Row], dict[int, float]]:
    cards = f"{BY[method]}{MBIT_S} Mbit/s"
    times: dict[int, float] = {}
    rows = []
    for count in options.members:
        with fleet(places[: count + 1], nbytes, method=method) as members:
            times[count] = median(members, options.rounds)
        rows.append(Row(f"{cards}, {count} members: until all have it", times[count], "s", better="lower"))
        if count > 1:
            goal = {FEW: FEW_GOAL, MANY: MANY_GOAL}.get(count)
            title = f"{cards}, {count} members: over the time for one"
            rows.append(Row(title, times[count] / times[1], "", goal, "lower"))
    return rows, times


def shaped(options: argparse.Namespace, nbytes: int, method: FanOutMethod) -> list[Row]:
    cards, most = f"{BY[method]}{MBIT_S} Mbit/s", max(options.members)
    with network(most + 1, MBIT_S) as places:
        rows, times = scaling(options, places, nbytes, method)
        killed = []
        for number in range(options.kills):
            with fleet(places, nbytes, method=method) as members:
                members.round()
                killed.append(members.round(victim=number * most // options.kills))
    rows += late(options, nbytes, times[1], method)
    title = f"{cards}, {most} members, one killed"
    rows.append(Row(f"{title}: the others have it, over nobody killed, median",
                    statistics.median(killed) / times[most], "", KILL_GOAL, "lower"))  # fmt: skip
    rows.append(Row(f"{title}: the others have it, over nobody killed, worst",
                    max(killed) / times[most], "", better="lower"))  # fmt: skip
    for what, digest in (("chunks", chunk_hash), ("bytes by SHA-256 at either end", sha256)):
        rows.append(Row(f"{cards}: hashing all {what}, over the transfer to one",
                        hashing(nbytes, digest) / times[1], "", HASH_GOAL, "lower"))  # fmt: skip
    return rows


def late(options: argparse.Namespace, nbytes: int, alone_s: float, method: FanOutMethod) -> list[Row]:
    have_it, joiners = range(options.have_it), range(options.have_it, options.have_it + options.late)
    took, killed, cards = [], [], []
    with network(len(have_it) + len(joiners) + 1, MBIT_S) as places:
        for number in range(2 * options.rounds):
            with fleet(places, nbytes, method=method) as members:
                # Makes memory and listeners.
                members.round()
                members.round(members=have_it)
                before = [sent(place) for place in places]
                if number % 2:
                    killed.append(members.join_late(joiners, partial(kill_a_holder, members, places, before, alone_s)))
                else:
                    took.append(members.join_late(joiners))
                    cards.append(sent(places[0]) - before[0])
    title = f"{BY[method]}{MBIT_S} Mbit/s, {len(have_it)} have it, {len(joiners)} join late"
    return [
        Row(f"{title}: until these have it, over the time for one",
            statistics.median(took) / alone_s, "", LATE_GOAL, "lower"),
        Row(f"{title}: what the trainer's card sends, over the version, worst",
            max(cards) / nbytes, "", CARD_GOAL, "lower"),
        Row(f"{title}, a holder killed: until these have it, over the time for one, worst",
            max(killed) / alone_s, "", LATE_GOAL, "lower")
    ]  # fmt: skip


def kill_a_holder(members: Receivers, places: list[tuple[str, str]], before: list[int], alone_s: float) -> None:
    """Kill a member that has sent something, after half of the time for one."""
    time.sleep(alone_s / 2)
    # The first place is the trainer's.
    gains = [sent(place) - had for place, had in zip(places, before, strict=True)][1:]
    members.kill(gains.index(max(gains)))


def slow(options: argparse.Namespace, method: FanOutMethod) -> list[Row]:
    most, nbytes = max(options.members), options.slow_mib << 20
    undisturbed, disturbed = [], []
    for number in range(options.kills):
        with network(most + 1, SLOW_MBIT_S) as places, fleet(places, nbytes, method=method) as members:
            members.round()
            undisturbed.append(members.round())
            victim = number * most // options.kills
            reshape(places[victim + 1], SLOW_MBIT_S / 100)
            disturbed.append(members.round(slow=victim))
    usual = statistics.median(undisturbed)
    title = f"{BY[method]}{SLOW_MBIT_S} Mbit/s, {options.slow_mib} MiB, {most} members"
    return [
        Row(f"{title}: until all have it", usual, "s", better="lower"),
        Row(f"{title}, the card of one at 1 %: the others have it, over none slow, median",
            statistics.median(disturbed) / usual, "", SLOW_GOAL, "lower"),
        Row(f"{title}, the card of one at 1 %: the others have it, over none slow, worst",
            max(disturbed) / usual, "", better="lower")
    ]  # fmt: skip


def loopback(options: argparse.Namespace, nbytes: int) -> list[Row]:
    rows = []
    for count in (1, 2):
        places = [(None, "127.0.0.1")] * (count + 1)
        with fleet(places, nbytes) as new, fleet(places, nbytes, fan_out=False) as old:
            for members in (new, old):
                members.round()
            times: dict[Receivers, list[float]] = {new: [], old: []}
            for number in range(options.rounds * 6):
                # Each comes first as often as the other.
                for members in (new, old) if number % 2 else (old, new):
                    times[members].append(members.round())
        with_it, without = (statistics.median(times[members]) for members in (new, old))
        members_are = f"loopback, {count} member{'s' * (count > 1)}"
        rows.append(Row(f"{members_are}: until all have it", with_it, "s", better="lower"))
        rows.append(Row(f"{members_are}: over the time without fan-out", with_it / without, "", BESIDE_GOAL, "lower"))
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
    arguments = parser(__doc__, subjects=True)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--kills", type=int, default=4)
    arguments.add_argument("--members", nargs="*", type=int, default=[1, FEW, MANY], help="1, and more, for shaped")
    arguments.add_argument("--have-it", type=int, default=HAVE_IT, help="members that have it when others join late")
    arguments.add_argument("--late", type=int, default=LATE, help="members that join late")
    arguments.add_argument("--mib", type=int, default=48, help="size of the version, MiB")
    arguments.add_argument("--slow-mib", type=int, default=192, help="size of the version where a card is slow, MiB")
    arguments.add_argument("--methods", nargs="*", choices=BY, default=list(BY), help="for shaped and slow")
    options = arguments.parse_args()
    if options.short:
        options.rounds, options.kills, options.members, options.mib, options.slow_mib = 1, 1, [1, 2], 4, 4
        options.have_it, options.late = 2, 1
    for subject, folder in subjects_of(options).items():
        nbytes = options.mib << 20
        if folder is not None:
            nbytes = (folder / "model.safetensors").stat().st_size
            options.rounds, options.members = 1, [count for count in options.members if count <= FEW]
        notes = ["trainer, members and links share this machine's cores"]
        rows = loopback(options, nbytes)
        lacking = why_not()
        for method in reversed(options.methods if lacking is None else []):
            if folder is None:
                rows = shaped(options, nbytes, method) + slow(options, method) + rows
            else:
                with network(max(options.members) + 1, MBIT_S) as places:
                    rows = scaling(options, places, nbytes, method)[0] + rows
        if lacking is not None:
            notes.append(f"nothing is shaped: {lacking}")
        title = f"{nbytes >> 20} MiB from the trainer to its members, by memory and over links"
        report("fan_out", title, rows, options, subject=subject, notes=notes)


if __name__ == "__main__":
    main()
