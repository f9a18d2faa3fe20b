r"""Whether two answers mean the same in mathematics, such as ``\frac{\sqrt{2}}{2}`` and ``\frac{1}{\sqrt{2}}``.

``math-verify`` decides, with sympy, which for a few characters (``9^{9^{9^9}}``) computes for ever. Its own limits are
signal handlers, which do not run amid such a computation, and raise what sympy may catch. So it has a process of its
own, with limits that the kernel keeps::

    (none) --first question--> STARTING --"ready"--> IDLE --question--> CHECKING --answer--> IDLE
                                  |                                        '--LIMIT_S, or dead--> (none): not the same
                                  '--ends: EquivalenceError

It ends with its input, and amid a check at the limit: so no later than that, whatever becomes of who started it.
Questions and answers are lines of JSON. One at a time: whoever asks meanwhile waits.
"""

import asyncio
import atexit
import json
import logging
import resource
import signal
import subprocess
import sys
import threading
from typing import Any

from trinity_bus.errors import TrinityError

log = logging.getLogger(__name__)

MAX_CHARS = 512  # of an answer; nobody's is longer
LIMIT_S = 5.0  # of one check
MEMORY_BYTES = 2 << 30
_READY = "ready"


class EquivalenceError(TrinityError):
    pass


class Checker:
    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()

    async def same(self, given: str, wanted: str) -> bool:
        """Whether two answers in LaTeX are equal; not where that takes too long, or one of them is too long."""
        if max(len(given), len(wanted)) > MAX_CHARS:
            return False
        return await asyncio.to_thread(self._ask, given, wanted)

    def close(self) -> None:
        with self._turn:
            self._end()

    def _ask(self, given: str, wanted: str) -> bool:
        with self._turn:
            process = self._process or self._start()
            assert process.stdin is not None  # noqa: S101 - for types
            assert process.stdout is not None  # noqa: S101 - likewise
            try:
                process.stdin.write(json.dumps([given, wanted]) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = ""
            if not answer:
                self._end()
                log.info("whether %r is %r was not found out within the limits of time and memory", given, wanted)
                return False
            return bool(json.loads(answer))

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "trinity_bus.rollout.equivalence", str(self._limit_s)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
        self._process = process
        assert process.stdout is not None  # noqa: S101 - for types
        if process.stdout.readline().strip() != _READY:
            self._end()
            raise EquivalenceError(
                f"answers cannot be compared: math-verify does not start (status {process.returncode}); "
                "it comes with the extras explorer-cpu and explorer-gpu"
            )
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # Closes its pipes, too.
            process.communicate()


CHECKER = Checker()  # the one of this process
atexit.register(CHECKER.close)


def main(limit_s: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    from math_verify import LatexExtractionConfig, parse, verify

    # They tell that their own limits are off: those need signals, and stop less than the kernel does.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    configuration = [LatexExtractionConfig()]
    print(_READY, flush=True)
    for line in sys.stdin:
        # Not handled, and so the end.
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            given, wanted = (
                parse(f"${text}$", configuration, parsing_timeout=None, fallback_mode="no_fallback")
                for text in json.loads(line)
            )
            same = bool(given and wanted) and verify(wanted, given, timeout_seconds=None)
            same = same and not _apart(wanted[0], given[0])
        # Of what sympy cannot compare, such as two divisions by nought; what has taken too much memory is the end.
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            same = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(same), flush=True)


def _apart(wanted: Any, given: Any) -> bool:
    """Whether two numbers differ, which math-verify does not see of those that are almost nought."""
    if not (getattr(wanted, "is_number", False) and getattr(given, "is_number", False)):
        return False
    return bool(abs((wanted - given).evalf()) > 1e-5 * abs(wanted.evalf()))


if __name__ == "__main__":
    main(float(sys.argv[1]))
