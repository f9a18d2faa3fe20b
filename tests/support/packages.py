"""Packages that a test installs in a folder on the path."""

from pathlib import Path


def install(folder: Path, name: str, source: str, entry_points: str) -> None:
    """One module of this name, as an installed package brings it."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(entry_points)
