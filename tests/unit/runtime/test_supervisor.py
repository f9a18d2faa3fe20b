import asyncio
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.mesh.processes import assert_all_gone, family_of
from tests.support.mesh.waiting import wait_until
from trinity_bus.runtime.process import Child, ProcessError
from trinity_bus.runtime.supervisor import (
    LIVED_S,
    SETTINGS_STATUS,
    Fate,
    Restarts,
    ServiceDiedError,
    ServiceSpec,
    Supervisor,
    activity_of,
)

SLEEP = ("sleep", "600")

STARTING = """
import sys, time
from pathlib import Path
from trinity_bus.runtime.supervisor import ServiceSpec, Supervisor

first, there = Path(sys.argv[1], "first"), Path(sys.argv[1], "there")
with Supervisor(Path(sys.argv[1])) as supervisor:
    # Shells that say by themselves that their child is there: what they would start for it would be one more process.
    supervisor.launch(ServiceSpec(name="first", command=["sh", "-c", f"sleep 600 & : >{first}; wait"]))
    supervisor.launch(ServiceSpec(name="second", command=["sh", "-c", f"trap '' TERM; sleep 600 & : >{there}; wait"],
                                  grace_s=0.2))
    while not (first.exists() and there.exists()):
        time.sleep(0.01)
    print("waiting", flush=True)
    time.sleep(600)
"""
"""A supervisor whose second service does not end when asked."""


def test_a_service_has_its_environment_and_a_name_of_its_own(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    command = ["sh", "-c", f"echo $COLOUR $PATH; touch {flag}; exec sleep 600"]
    spec = ServiceSpec(name="a", command=command, env={**os.environ, "COLOUR": "blue"})
    with Supervisor(tmp_path) as supervisor:
        supervisor.launch(spec)
        wait_until(flag.exists, "the service", 60)
        assert supervisor.log("a").read_text() == f"blue {os.environ['PATH']}\n"
        supervisor.check()
        with pytest.raises(ProcessError, match="there is a service a already"):
            supervisor.launch(spec)


async def test_the_others_go_on_without_one_that_is_not_needed_or_has_done_its_work(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.launch(ServiceSpec(name="looks-on", command=["false"], is_needed=False))
        supervisor.launch(ServiceSpec(name="brief", command=["true"], again=True, work_ends=True))
        supervisor.launch(ServiceSpec(name="other", command=SLEEP))
        while not supervisor.is_done("brief") or supervisor._services["looks-on"].fate is None:
            supervisor.check()
            await asyncio.sleep(0.01)
        assert not supervisor.is_done("other")


async def test_death_is_reported_with_the_end_of_the_log(tmp_path: Path) -> None:
    command = ["sh", "-c", "for i in $(seq 100); do echo line $i; done; exit 7"]
    with Supervisor(tmp_path) as supervisor:
        supervisor.launch(ServiceSpec(name="trainer", command=command))
        with pytest.raises(ServiceDiedError) as caught:
            await supervisor.watch()
    assert f"trainer ended with status 7. Its log: {tmp_path}/logs/trainer.log" in str(caught.value)
    assert "line 81\n" in str(caught.value)
    assert "line 80\n" not in str(caught.value)


def test_stages_stop_in_reverse_order(tmp_path: Path) -> None:
    order = tmp_path / "order"

    def spec(name: str, stage: int) -> ServiceSpec:
        ready = tmp_path / name
        script = f"trap 'echo {name} >>{order}; exit' TERM; touch {ready}; while :; do sleep 0.01; done"
        return ServiceSpec(name=name, command=["sh", "-c", script], stage=stage)

    with Supervisor(tmp_path) as supervisor:
        for name, stage in (("broker", 0), ("coordinator", 1), ("explorer", 2)):
            supervisor.launch(spec(name, stage))
            wait_until((tmp_path / name).exists, name, 60)
    assert order.read_text().split() == ["explorer", "coordinator", "broker"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind_when_stopped_during_start_up(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", STARTING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "waiting\n"
        family = family_of(supervisor.pid)
        # The supervisor, two guards, two shells, two sleeps.
        assert len(family) == 7
        supervisor.send_signal(number)
        assert supervisor.wait(60) != 0
    assert_all_gone(family)


def test_what_a_service_does_is_the_last_line_that_says_so(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    assert activity_of("one", log).what == "waits for its imports"
    log.touch()
    assert activity_of("one", log).what == "starting"
    log.write_text(
        "12:00:00 INFO    workers.one: loading a: b\n12:00:01 WARNING other: look out\n"
        "12:00:02 INFO    megatron.core: a\n(Engine) INFO 11-23 x\n"
    )
    os.utime(log, (0, time.time() - 7))
    found = activity_of("one", log)
    assert (found.name, found.what) == ("one", "loading a: b")
    assert 7 <= found.seconds < 60
    log.write_text(f"12:00:02 INFO    workers.one: {'words ' * 100}\n")
    assert len(activity_of("one", log).what) <= 100


def test_one_that_is_stopped_is_not_taken_for_one_that_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Child.stop

    with Supervisor(tmp_path) as supervisor:

        def stop_and_look(child: Child, grace_s: float) -> int:
            code = stop(child, grace_s)
            supervisor.check()
            return code

        supervisor.launch(ServiceSpec(name="one", command=SLEEP))
        supervisor.launch(ServiceSpec(name="other", command=SLEEP))
        monkeypatch.setattr(Child, "stop", stop_and_look)
        assert supervisor.stop_one("one") == -signal.SIGTERM
        assert [one.name for one in supervisor.activities()] == ["other"]


STATUSES = st.integers(-64, 255) | st.just(SETTINGS_STATUS)
ENDS = st.lists(st.tuples(STATUSES, st.floats(0, 10 * LIVED_S)), max_size=40)


@given(ENDS, st.integers(0, 8), st.booleans())
def test_every_end_has_the_fate_of_its_reason(ends: list[tuple[int, float]], most: int, work_ends: bool) -> None:
    restarts, row = Restarts(most, work_ends=work_ends), 0
    for status, ran_s in ends:
        verdict = restarts.ended(status, ran_s)
        row = 0 if ran_s >= LIVED_S else row
        if status == 0 and work_ends:
            assert verdict.fate is Fate.DONE
        elif status == SETTINGS_STATUS or row >= most:
            assert verdict.fate is Fate.GIVEN_UP
        else:
            assert verdict.fate is Fate.AGAIN
            assert 1 <= verdict.pause_s <= 60
            row += 1
        assert verdict.why
        if verdict.fate is not Fate.AGAIN:
            return


@given(st.lists(st.floats(0, LIVED_S, exclude_max=True), min_size=7, max_size=7))
def test_what_ends_at_once_again_and_again_waits_longer_each_time_and_is_given_up(lives: list[float]) -> None:
    restarts = Restarts()
    verdicts = [restarts.ended(1, ran_s) for ran_s in lives]
    assert [verdict.fate for verdict in verdicts] == [Fate.AGAIN] * 6 + [Fate.GIVEN_UP]
    assert all(after.pause_s == 2 * before.pause_s for before, after in pairwise(verdicts[:6]))
    assert verdicts[-1].why == "ended with status 1, once more after 6 starts"


def test_what_ends_now_and_then_is_started_for_ever_and_the_reason_is_said() -> None:
    restarts = Restarts()
    assert {restarts.ended(-signal.SIGKILL, LIVED_S).pause_s for _ in range(1000)} == {1.0}
    assert Restarts().ended(-signal.SIGKILL, 0).why == "was ended by SIGKILL, as the kernel does where memory is short"
    assert "setting" in Restarts().ended(SETTINGS_STATUS, 0).why
