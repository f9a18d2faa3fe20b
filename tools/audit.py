"""Asks whether vulnerabilities are known of what the locks pin: every package of ``requirements/*.lock``, by pip-audit.

    make audit                                   # all of it
    make audit ARGS="--service osv"              # another service than the package index's own

==========================================  ======  ===================================================================
what comes of it                            status  and is said
==========================================  ======  ===================================================================
the service knows every package, and none   0       how many were asked about
vulnerabilities are known                   1       each, with the versions that mend it
the service does not answer, or knows       3       that nothing, or of which packages nothing, is known: no word of
nothing of a package                                "no vulnerabilities"
==========================================  ======  ===================================================================

pip-audit itself ends with 0 and "no known vulnerabilities found" where it could ask about no package at all, so what it
says of each is counted here. Jars and Debian's packages are not asked about.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKS = ("cpu", "gpu", "tools", "site", "peers", "chart", "shots", "smollm2")
"""The images' locks have the same packages in the same versions."""
VULNERABLE = 1
NOT_AUDITED = 3
LIMIT_S = 1800


class AuditError(Exception):
    """A lock could not be audited."""


@dataclass(slots=True)
class Findings:
    """What is known of the packages of all locks."""

    asked: set[str] = field(default_factory=set)
    unknown: dict[str, str] = field(default_factory=dict)
    """Package and version, or lock, to the reason why nothing is known of it."""
    vulnerable: dict[str, list[str]] = field(default_factory=dict)
    """Package and version to what is known."""

    def take(self, report: Any) -> None:
        """Count in what pip-audit says of one lock.

        Raises:
            AuditError: It is not what pip-audit writes, or is about no package.
        """
        try:
            for entry in report["dependencies"]:
                if "skip_reason" in entry:
                    self.unknown[entry["name"]] = str(entry["skip_reason"])
                    continue
                name = f"{entry['name']} {entry['version']}"
                self.asked.add(name)
                for found in entry["vulns"]:
                    mended = ", ".join(found["fix_versions"]) or "no version"
                    line = f"{found['id']}: mended in {mended}"
                    known = self.vulnerable.setdefault(name, [])
                    if line not in known:
                        known.append(line)
            if not report["dependencies"]:
                raise AuditError("the report is about no package")
        except (KeyError, TypeError) as error:
            raise AuditError(f"the report cannot be read: {error!r}") from error

    def status(self) -> int:
        if self.vulnerable:
            return VULNERABLE
        return NOT_AUDITED if self.unknown or not self.asked else 0

    def lines(self) -> list[str]:
        said = [f"{name}  {line}" for name, lines in sorted(self.vulnerable.items()) for line in lines]
        if self.vulnerable:
            said.append(f"VULNERABLE: {len(self.vulnerable)} of {len(self.asked)} packages")
        if self.unknown or not self.asked:
            reasons = sorted(set(self.unknown.values()))
            said += [f"  {reason}" for reason in reasons[:5]]
            said += [f"  ... and {len(reasons) - 5} more"] if len(reasons) > 5 else []
            said.append(
                f"NOT AUDITED: nothing is known of {len(self.unknown)} packages or locks, {len(self.asked)} were asked "
                "about. Is the vulnerability service reachable?"
            )
        if not said:
            said.append(f"no known vulnerabilities in {len(self.asked)} packages")
        return said


def ask(tool: Path, lock: Path, arguments: Sequence[str]) -> Any:
    """pip-audit's report on a lock.

    Raises:
        AuditError: It makes none.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "report.json"
        command: list[str | Path] = [
            tool,
            "--requirement",
            lock,
            "--disable-pip",
            "--require-hashes",
            "--progress-spinner",
            "off",
        ]
        command += ["--format", "json", "--output", target, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise AuditError(f"pip-audit has not ended after {LIMIT_S} s") from error
        try:
            return json.loads(target.read_text())
        except (OSError, ValueError) as error:
            said = done.stderr.strip().splitlines()
            raise AuditError(said[-1] if said else f"pip-audit ended with {done.returncode} and no report") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", choices=("pypi", "osv"), default="pypi", help="who is asked")
    parser.add_argument("--tool", type=Path, default=ROOT / ".cache" / "tools" / "bin" / "pip-audit")
    parser.add_argument("locks", type=Path, nargs="*", help="those of the project where absent")
    arguments = parser.parse_args()
    findings = Findings()
    for lock in arguments.locks or [ROOT / "requirements" / f"{name}.lock" for name in LOCKS]:
        try:
            findings.take(ask(arguments.tool, lock, ["--vulnerability-service", arguments.service]))
        except (AuditError, OSError) as error:
            findings.unknown[lock.name] = f"{lock.name}: {error}"
    print("\n".join(findings.lines()))
    return findings.status()


if __name__ == "__main__":
    sys.exit(main())
