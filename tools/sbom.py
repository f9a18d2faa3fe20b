"""Writes what the mesh is made of: a bill of materials (CycloneDX, JSON) and a list of licences, into build/sbom.

    make sbom            # of .venv, as requirements/cpu.lock has it; DEVICE=gpu for the other

Python packages come from the environment as it is installed, by cyclonedx-py and pip-licenses, which
``requirements/tools.lock`` pins; it must be what its own lock says. Apache Kafka's jars come from ``kafka.lock``. What
no image has is marked as excluded: it is there for development. Debian's packages in the images are not part of it.
"""

import argparse
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trinity_bus.broker.jars import Jar, jar_folder, read_lock
from trinity_bus.broker.layout import cache_dir
from trinity_bus.config import BrokerSettings

ROOT = Path(__file__).parents[1]
PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)
_VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(str(found) if found else 0)
"""


class SbomError(Exception):
    """The bill cannot be made, or would be wrong."""


def canonical(name: str) -> str:
    """Return a package's name as all its spellings have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    """Name to version, of a lock file."""
    return {canonical(name): version for name, version in PINNED.findall(text)}


def differences(wanted: dict[str, str], components: Iterable[dict[str, Any]]) -> list[str]:
    """How an environment is not what its lock says; empty if it is. The project itself is in no lock."""
    found = {canonical(component["name"]): component["version"] for component in components}
    found.pop("trinity-bus", None)
    return [
        f"{name}: {wanted.get(name, 'nothing')} in the lock, {found.get(name, 'nothing')} installed"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


def jar_component(jar: Jar) -> dict[str, Any]:
    """Return a jar as CycloneDX has it."""
    purl = f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "group": jar.group,
        "name": jar.artifact,
        "version": jar.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
        # Of the embedded broker, which no image has.
        "scope": "optional",
    }


def completed(bom: dict[str, Any], jars: Sequence[Jar], in_images: Iterable[str]) -> dict[str, Any]:
    """Return the environment's bill with the jars, and with what no image has marked as excluded.

    Args:
        bom: As cyclonedx-py makes it.
        jars: Of the embedded broker.
        in_images: Names of the packages that any image has.
    """
    shipped = set(in_images)
    packages = [component for component in bom["components"] if canonical(component["name"]) != "trinity-bus"]
    for component in packages:
        component["scope"] = "required" if canonical(component["name"]) in shipped else "excluded"
    return {**bom, "components": [*packages, *map(jar_component, jars)]}


def jar_licence(path: Path) -> str:
    """Return what a jar says of its licence.

    Raises:
        OSError: It is not there.
        zipfile.BadZipFile: It is no jar.
    """
    with zipfile.ZipFile(path) as jar:
        names = set(jar.namelist())
        if "META-INF/MANIFEST.MF" in names:
            # A line that is too long goes on in the next one, after a blank.
            manifest = (
                jar.read("META-INF/MANIFEST.MF").decode("utf-8", "replace").replace("\r\n", "\n").replace("\n ", "")
            )
            if found := re.search(r"^Bundle-License: *(.+)$", manifest, re.MULTILINE):
                return found[1].strip()
        inside = sorted(name for name in names if re.fullmatch(r"(META-INF/)?LICENSE(\.\w+)?", name))
        return f"in its {inside[0]}" if inside else "not declared"


def licence_page(packages: Sequence[dict[str, str]], jars: Sequence[tuple[Jar, str]]) -> str:
    """Return the list for people.

    Args:
        packages: As pip-licenses gives them.
        jars: Each with its licence.
    """
    own = [entry for entry in packages if canonical(entry["Name"]) != "trinity-bus"]
    lines = ["# Licences", "", "Written by `make sbom`.", "", "## Python packages", ""]
    lines += ["| package | version | licence |", "|---|---|---|"]
    lines += [f"| {e['Name']} | {e['Version']} | {_cell(e['License'])} |" for e in own]
    lines += ["", "## Jars of the embedded broker", "", "| jar | version | licence |", "|---|---|---|"]
    lines += [f"| {jar.group}:{jar.artifact} | {jar.version} | {_cell(licence)} |" for jar, licence in jars]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """In one cell of a table; some packages give their licence's whole text."""
    line = " ".join(text.split()).replace("|", "/")
    return "not declared" if line == "UNKNOWN" else line if len(line) <= 100 else f"{line[:99]}…"


def run(*command: str | Path, stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SbomError(f"{Path(command[0]).name}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def make(tools: Path, python: Path, lock: Path, image_locks: Sequence[Path], target: Path) -> list[str]:
    bom = json.loads(
        run(
            *(tools / "bin" / "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON"),
            *("--spec-version", "1.6", "--pyproject", ROOT / "pyproject.toml", "--output-file", "-", python),
        )
    )
    wrong = differences(pinned(lock.read_text()), bom["components"])
    if wrong:
        raise SbomError(f"{python} is not what {lock.name} says: make setup\n" + "\n".join(wrong))
    jars = read_lock()
    in_images = {name for path in image_locks for name in pinned(path.read_text())}
    text = json.dumps(completed(bom, jars, in_images), indent=1, sort_keys=True) + "\n"
    run(tools / "bin" / "python", "-c", _VALIDATE, stdin=text)
    packages = json.loads(
        run(tools / "bin" / "pip-licenses", "--python", python, "--format=json", "--from=mixed", "--with-system")
    )
    folder = jar_folder(cache_dir(BrokerSettings()))
    licences = [(jar, jar_licence(folder / jar.filename)) for jar in jars]
    target.mkdir(parents=True, exist_ok=True)
    (target / "trinity-bus.cdx.json").write_text(text)
    (target / "licences.md").write_text(licence_page(packages, licences))
    silent = sum(entry["License"] == "UNKNOWN" for entry in packages)
    return [
        f"{target / 'trinity-bus.cdx.json'}: {len(bom['components'])} Python packages, {len(jars)} jars",
        f"{target / 'licences.md'}: {silent} packages declare none",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="which lock .venv is made from")
    arguments = parser.parse_args()
    images = sorted((ROOT / "requirements" / "images").glob("*.lock"))
    images = [path for path in images if path.stem.partition("-")[2] in ("", arguments.device)]
    lock = ROOT / "requirements" / f"{arguments.device}.lock"
    try:
        said = make(ROOT / ".cache" / "tools", Path(sys.executable), lock, images, ROOT / "build" / "sbom")
    except (SbomError, OSError, zipfile.BadZipFile) as error:
        print(f"no bill of materials: {error}", file=sys.stderr)
        return 1
    print("\n".join(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
