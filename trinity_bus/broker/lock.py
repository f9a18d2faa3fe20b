"""Writes ``kafka.lock``: ``python -m trinity_bus.broker.lock``. Run it after a change of version below, with a network.

Kafka's POM names what its server and its tools need; what no running server loads is left out. Kafka and its logging
are resolved one after the other, because log4j's POM pins an older Kafka client for its own appender.
"""

import tempfile
from pathlib import Path
from typing import Any

from trinity_bus.broker.jars import LOCK_FILE, digest, maven

# As in the compose stack. Not 4.2 or 4.3, which forget to end a transaction in partitions that have no leader at that
# moment, as when a killed broker comes back: nobody reads what was committed to them any more (KAFKA-20734).
KAFKA_VERSION = "4.1.1"
_SCALA_VERSION = "2.13"
# needed by macros when Kafka is compiled, and by its command-line tools
_EXCLUDED = frozenset({"scala-reflect", "jackson-dataformat-csv"})


def resolve() -> dict[str, str]:
    """Return the SHA-256 of every jar that a Kafka server needs by ``group:artifact:version``, in class path order."""
    with tempfile.TemporaryDirectory() as cache:
        context = maven(Path(cache))
        found: dict[tuple[str, str], Any] = {}

        def add(coordinate: str) -> None:
            inputs, transitive = context.resolver.resolve([context.create_dependency(coordinate)])
            for dependency in (*inputs, *transitive):
                found.setdefault((dependency.groupId, dependency.artifactId), dependency.artifact)

        add(f"org.apache.kafka:kafka_{_SCALA_VERSION}:{KAFKA_VERSION}")
        log4j = found["org.apache.logging.log4j", "log4j-core"].version
        # Kafka speaks SLF4J 1; this is what writes it to log4j. Its distribution adds it, its POM does not.
        add(f"org.apache.logging.log4j:log4j-slf4j-impl:{log4j}")
        return {
            f"{group}:{name}:{artifact.version}": digest(Path(artifact.resolve())) or ""
            for (group, name), artifact in found.items()
            if name not in _EXCLUDED
        }


def main() -> None:
    lines = [f"{coordinate} {sha256}" for coordinate, sha256 in resolve().items()]
    header = (
        f"# Apache Kafka {KAFKA_VERSION}: group:artifact:version sha256. Written by python -m trinity_bus.broker.lock"
    )
    LOCK_FILE.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    print(f"{LOCK_FILE}: {len(lines)} jars")


if __name__ == "__main__":
    main()
