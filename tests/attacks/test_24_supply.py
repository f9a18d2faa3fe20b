"""What the mesh is made of is written down by one command; "no vulnerabilities" is said of what was asked about alone.

Before: there was neither. pip-audit alone ends with 0 and "No known vulnerabilities found" where the vulnerability
service answers about no package at all.
"""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools import audit, sbom
from trinity_bus.broker.jars import Jar, read_lock

ROOT = Path(__file__).parents[2]

LOCKS = sorted((ROOT / "requirements").rglob("*.lock"))


# -------------------------------------------------------------------------------------------------------------- audit


def dependency(name: str, *vulnerabilities: str, skipped: str | None = None) -> dict[str, Any]:
    if skipped is not None:
        return {"name": name, "skip_reason": skipped}
    found = [{"id": known, "fix_versions": ["2.0"], "aliases": [], "description": ""} for known in vulnerabilities]
    return {"name": name, "version": "1.0", "vulns": found}


def audited(tmp_path: Path, report: object, *, status: int = 0, says: str = "") -> subprocess.CompletedProcess[str]:
    """``tools/audit.py`` with a pip-audit that writes this report, or none."""
    tool = tmp_path / "pip-audit"
    write = (
        "" if report is None else f"open(sys.argv[sys.argv.index('--output') + 1], 'w').write({json.dumps(report)!r})"
    )
    tool.write_text(f"#!{sys.executable}\nimport sys\n{write}\nprint({says!r}, file=sys.stderr)\nsys.exit({status})\n")
    tool.chmod(0o755)
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "audit.py", "--tool", tool, ROOT / "requirements" / "images" / "base.lock"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_packages_that_were_asked_about_and_have_nothing_are_the_only_way_to_no_vulnerabilities(tmp_path: Path) -> None:
    done = audited(tmp_path, {"dependencies": [dependency("a"), dependency("b")]})
    assert (done.returncode, done.stdout) == (0, "no known vulnerabilities in 2 packages\n")


@pytest.mark.parametrize(
    ("report", "status", "says", "told"),
    [
        (
            {"dependencies": [dependency("a", skipped="not found: a")]},
            0,
            "No known vulnerabilities found",
            "not found: a",
        ),
        ({"dependencies": [dependency("a"), dependency("b", skipped="not found: b")]}, 0, "", "not found: b"),
        ({"dependencies": []}, 0, "No known vulnerabilities found", "no package"),
        ({}, 0, "", "cannot be read"),
        ([], 0, "", "cannot be read"),
        (None, 1, "ERROR: Connection refused", "base.lock: ERROR: Connection refused"),
        (None, 0, "", "ended with 0 and no report"),
    ],
    ids=["nothing is known", "something is", "of nothing", "no report", "another", "no service", "silence"],
)
def test_what_nobody_was_asked_about_is_an_error_of_its_own(
    tmp_path: Path, report: object, status: int, says: str, told: str
) -> None:
    done = audited(tmp_path, report, status=status, says=says)
    assert done.returncode == audit.NOT_AUDITED
    assert "NOT AUDITED" in done.stdout
    assert told in done.stdout
    assert "no known vulnerabilities" not in done.stdout.lower()


def test_a_vulnerability_is_named_with_what_mends_it_also_where_not_everything_was_asked(tmp_path: Path) -> None:
    report = {"dependencies": [dependency("a", "CVE-1", "CVE-2"), dependency("b", skipped="not found: b")]}
    done = audited(tmp_path, report, status=1)
    assert done.returncode == audit.VULNERABLE
    assert "a 1.0  CVE-1: mended in 2.0" in done.stdout
    assert "VULNERABLE: 1 of 1 packages" in done.stdout
    assert "NOT AUDITED" in done.stdout


# --------------------------------------------------------------------------------------------------------------- bill


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_package_is_pinned_with_hashes_and_no_file_names_an_index(lock: Path) -> None:
    text = lock.read_text()
    requirements = re.split(r"\n(?=\S)", text.strip())
    assert requirements
    for requirement in requirements:
        assert re.match(r"[\w.-]+==\S+", requirement), requirement.splitlines()[0]
        assert "--hash=sha256:" in requirement, requirement.splitlines()[0]
    assert "://" not in text


def test_every_lock_is_audited() -> None:
    """Those of the images are taken from those of the whole project."""
    whole = {path.stem for path in LOCKS if path.parent.name == "requirements"}
    assert whole == set(audit.LOCKS)
    for device in ("cpu", "gpu"):
        known = sbom.pinned((ROOT / "requirements" / f"{device}.lock").read_text())
        for path in (ROOT / "requirements" / "images").glob(f"*-{device}.lock"):
            assert sbom.pinned(path.read_text()).items() <= known.items(), path.name


def test_an_environment_that_is_not_what_the_lock_says_is_found() -> None:
    installed = [{"name": n, "version": v} for n, v in (("A_b", "1.0"), ("c", "2.0"), ("e", "1"), ("trinity-bus", "0"))]
    wanted = sbom.pinned("a.b==1.0 \\\n    --hash=sha256:0\nc==2.1 ; sys_platform == 'linux'\nd==3\n")
    assert sbom.differences(wanted, installed) == [
        "c: 2.1 in the lock, 2.0 installed",
        "d: 3 in the lock, nothing installed",
        "e: nothing in the lock, 1 installed",
    ]


def test_jars_are_in_the_bill_and_what_no_image_has_is_excluded() -> None:
    jar = Jar("org.apache.kafka", "kafka-clients", "4.1.1", "0" * 64)
    bom = {"bomFormat": "CycloneDX", "components": [{"name": n} for n in ("Msgpack", "pytest", "trinity-bus")]}
    found = sbom.completed(bom, [jar], {"msgpack"})["components"]
    assert [(component["name"], component["scope"]) for component in found] == [
        ("Msgpack", "required"),
        ("pytest", "excluded"),
        ("kafka-clients", "optional"),
    ]
    assert found[2]["purl"] == "pkg:maven/org.apache.kafka/kafka-clients@4.1.1"


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        (
            {"META-INF/MANIFEST.MF": "Bundle-License: https://x/LICENSE-2\r\n .0\r\nOther: 1\r\n"},
            "https://x/LICENSE-2.0",
        ),
        ({"META-INF/MANIFEST.MF": "Other: 1\n", "LICENSE": "..."}, "in its LICENSE"),
        ({"LICENSED.class": ""}, "not declared"),
    ],
    ids=["in its manifest", "as a file", "nowhere"],
)
def test_the_licence_of_a_jar_is_what_the_jar_says(tmp_path: Path, files: dict[str, str], licence: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.jar", "w") as jar:
        for name, content in files.items():
            jar.writestr(name, content)
    assert sbom.jar_licence(tmp_path / "a.jar") == licence


@pytest.mark.nightly
@pytest.mark.integration
def test_the_tools_themselves_make_a_valid_bill_of_an_environment(tmp_path: Path) -> None:
    """Of their own, which is small; ``make sbom`` does the same with the whole project's."""
    subprocess.run([ROOT / "tools" / "tool_env.sh", "tools"], check=True, capture_output=True)
    tools = ROOT / ".cache" / "tools"
    lock = ROOT / "requirements" / "tools.lock"
    sbom.make(tools, tools / "bin" / "python", lock, [lock], tmp_path)
    bom = json.loads((tmp_path / "trinity-bus.cdx.json").read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert bom["metadata"]["component"]["name"] == "trinity-bus"
    names = {sbom.canonical(component["name"]) for component in bom["components"]}
    assert names >= {"pip-audit", *(sbom.canonical(jar.artifact) for jar in read_lock())}
    page = (tmp_path / "licences.md").read_text()
    assert re.search(r"^\| pip[-_]audit \| ", page, re.MULTILINE)
    assert "| org.apache.kafka:kafka-clients | " in page
    with pytest.raises(sbom.SbomError, match=r"is not what cpu\.lock says"):
        sbom.make(tools, tools / "bin" / "python", ROOT / "requirements" / "cpu.lock", [lock], tmp_path)


# ------------------------------------------------------------------------------------------------------------- policy


def test_the_policy_says_how_to_report_what_is_supported_and_what_counts() -> None:
    policy = (ROOT / "SECURITY.md").read_text()
    for heading in ("Report a vulnerability", "Supported versions", "Scope"):
        assert f"## {heading}" in policy
    for path in re.findall(r"\]\(([^)#]+)", policy):
        assert (ROOT / path).exists(), path
    for command in re.findall(r"`make (\w+)`", policy):
        assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command
