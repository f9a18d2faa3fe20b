"""Takes the schemas out of definitions of custom resources, for ``make chart-test``.

``python -m tools.crd_schemas FILE...`` writes ``tests/chart/crds/<kind>-<version>.json`` for each version that the
files of YAML define: without descriptions, and with fields that are not defined forbidden, as an API server reports
them. Where the files are from stands in ``tests/chart/crds/README.md``.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).parents[1] / "tests" / "chart" / "crds"


def strict(schema: Any) -> Any:
    """Return a schema as JSON Schema that allows what is defined and nothing else."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items() if not _is_prose(key, value)}
    preserved = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if isinstance(found.get("properties"), dict) and "type" in found and not preserved:
        found.setdefault("additionalProperties", False)
    return found


def _is_prose(key: str, value: Any) -> bool:
    return key == "description" and isinstance(value, str)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.crd_schemas", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    for path in parser.parse_args().files:
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
        for version in spec["versions"]:
            target = FOLDER / f"{spec['names']['kind']}-{version['name']}.json"
            schema = strict(version["schema"]["openAPIV3Schema"])
            target.write_text(json.dumps(schema, separators=(",", ":")) + "\n", encoding="utf-8")
            sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
