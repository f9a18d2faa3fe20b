import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_no_histogram_of_seconds_has_the_buckets_that_are_made_for_milliseconds() -> None:
    """With them nearly all of what is measured here would be in the first bucket, and every median 2.5 s."""
    found = 0
    for folder in ("trinity_bus", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            for call in re.findall(r"create_histogram\((.*?)\n\)", path.read_text(), re.DOTALL):
                found += 1
                assert "explicit_bucket_boundaries_advisory" in call, f"{path}: {call}"
    assert found >= 7
