"""Certificates for tests."""

import subprocess
from pathlib import Path


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that is its own authority, for the loopback interface, and its key."""
    key, made = folder / f"{name}.key", folder / f"{name}.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *names, "-keyout", key, "-out", made], check=True, capture_output=True)
    return made, key
