"""Puts the digest beside the tag of each image that the compose stack pulls, so that nobody can change what it means.

    python tools/pin_images.py            # writes deploy/docker-compose/images.env
    python tools/pin_images.py --check    # fails where a tag has moved since, or .env names another

Needs Docker, and the images' registries.

To use it: ``export COMPOSE_ENV_FILES=.env,images.env``. The digests are those of the whole image, for every platform.
Nothing is written unless every digest is known.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

NAME = "images.env"
FOLDER = Path(__file__).parents[1] / "deploy" / "docker-compose"
TAGGED = re.compile(r"[a-z0-9._/-]+:[\w.-]+")
PINNED = re.compile(rf"({TAGGED.pattern})@(sha256:[0-9a-f]{{64}})")
HEAD = "# Made by tools/pin_images.py: the images of .env with their digests.\n"
LIMIT_S = 120


class PinError(Exception):
    """A digest is not known, or not the one that is written down."""


def variables(text: str) -> dict[str, str]:
    """Return the images of a file of variables: name to value."""
    pairs = (line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, value in pairs if name.endswith("_IMAGE")}


def digest(image: str) -> str:
    """Return what the registry says that a tag is now.

    Raises:
        PinError: There is no Docker, or the registry does not answer.
    """
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{json .Manifest}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)  # noqa: S603
        found = json.loads(done.stdout)["digest"]
    except subprocess.CalledProcessError as error:
        raise PinError(f"{image}: {error.stderr.strip() or f'status {error.returncode}'}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise PinError(f"{image}: {error}") from error
    if not isinstance(found, str) or not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        raise PinError(f"{image}: {found!r} is no digest")
    return found


def mismatches(tagged: dict[str, str], pinned: dict[str, str]) -> list[str]:
    """Return what is wrong with a file of pinned images, without asking anybody; empty if nothing.

    Args:
        tagged: Of ``.env``.
        pinned: Of ``images.env``.
    """
    wrong = [f"{name} is in one of the two files only" for name in sorted(set(tagged) ^ set(pinned))]
    for name in sorted(set(tagged) & set(pinned)):
        found = PINNED.fullmatch(pinned[name])
        if found is None:
            wrong.append(f"{name}: {pinned[name]} is no image with tag and digest")
        elif found[1] != tagged[name]:
            wrong.append(f"{name} is {tagged[name]} in .env, and {found[1]} here")
    return wrong


def write(folder: Path) -> int:
    tagged = variables((folder / ".env").read_text())
    lines = [f"{name}={image}@{digest(image)}\n" for name, image in tagged.items()]
    (folder / NAME).write_text(HEAD + "".join(lines))
    return len(lines)


def check(folder: Path) -> int:
    """Compare what is pinned with ``.env`` and the registries; how many images there are.

    Raises:
        PinError: One is another, or its digest is not known.
    """
    tagged = variables((folder / ".env").read_text())
    if not (folder / NAME).exists():
        raise PinError(f"there is no {folder / NAME}: run tools/pin_images.py")
    pinned = variables((folder / NAME).read_text())
    wrong = mismatches(tagged, pinned)
    if not wrong:
        now = {name: f"{image}@{digest(image)}" for name, image in tagged.items()}
        wrong = [f"{name} was {pinned[name]}, and is {found}" for name, found in now.items() if found != pinned[name]]
    if wrong:
        raise PinError("\n".join(wrong))
    return len(tagged)


def main() -> int:
    """Write, or check; 1 where that cannot be done, or the check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where .env and images.env are")
    arguments = parser.parse_args()
    try:
        count = check(arguments.folder) if arguments.check else write(arguments.folder)
    except (PinError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{arguments.folder / NAME}: {count} images {'are what they were' if arguments.check else 'pinned'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
