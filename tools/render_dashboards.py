"""Draws the panels of the dashboards from the data in a Prometheus, as pictures for the documentation.

    .venv/bin/python tools/render_dashboards.py http://localhost:9090 --minutes 15 --into docs/images

One picture for each dashboard, with its panels, queries and units. They are drawn with matplotlib and say so: Grafana
shows the same queries, and looks different.
"""

import argparse
import json
import math
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, PercentFormatter

FOLDER = Path(__file__).parents[1] / "deploy" / "docker-compose" / "grafana" / "dashboards"
POINTS = 240
COLUMNS = 3
MOST_IN_LEGEND = 9
UNITS = {"s": "s", "ops": "/s", "percentunit": "", "short": "", "sci": ""}

type Line = tuple[str, list[float], list[float]]
"""Its name, seconds before the end, values."""


def lines_of(prometheus: str, panel: dict[str, Any], *, end: float, seconds: float) -> list[Line]:
    lines: list[Line] = []
    for target in panel["targets"]:
        parameters = {
            "query": target["expr"],
            "start": f"{end - seconds:.3f}",
            "end": f"{end:.3f}",
            "step": f"{max(1.0, seconds / POINTS):.3f}",
        }
        url = f"{prometheus}/api/v1/query_range?{urlencode(parameters)}"
        with urlopen(url, timeout=30) as answer:  # noqa: S310 - the address that was typed
            found = json.load(answer)["data"]["result"]
        for series in found:
            points = [(float(at) - end, float(value)) for at, value in series["values"]]
            kept = [(at, value) for at, value in points if math.isfinite(value)]
            if kept:
                label = _label(target["legendFormat"], series["metric"])
                lines.append((label, [at / 60 for at, _ in kept], [value for _, value in kept]))
    return sorted(lines)


def _label(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), template).rstrip(": ")


def draw(axes: Axes, panel: dict[str, Any], lines: list[Line], minutes: float) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    stacked = "stacking" in defaults.get("custom", {})
    axes.set_title(panel["title"], fontsize=9, loc="left", fontweight="bold")
    axes.set_xlim(-minutes, 0)
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, linewidth=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if not lines:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color="grey")
    if stacked:
        _stack(axes, lines)
    else:
        for label, at, values in lines:
            axes.plot(at, values, linewidth=1.2, label=label, marker="." if len(at) < 3 else None)
    unit = defaults.get("unit", "short")
    if unit == "percentunit":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if defaults.get("max") == 1 else None))
    elif unit == "s" or any(abs(value) >= 1000 for _, _, values in lines for value in values):
        axes.yaxis.set_major_formatter(EngFormatter(unit=UNITS[unit]))
    if "min" in defaults:
        axes.set_ylim(bottom=defaults["min"])
    if "max" in defaults:
        axes.set_ylim(top=defaults["max"])
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        shown = slice(MOST_IN_LEGEND)
        axes.legend(
            handles[shown],
            labels[shown],
            fontsize=6,
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(0, -0.08),
            ncols=3,
        )


def _stack(axes: Axes, lines: list[Line]) -> None:
    moments = sorted({round(at, 6) for _, times, _ in lines for at in times})
    below = [0.0] * len(moments)
    for label, times, values in lines:
        known = dict(zip((round(at, 6) for at in times), values, strict=True))
        above = [base + known.get(at, 0.0) for base, at in zip(below, moments, strict=True)]
        axes.fill_between(moments, below, above, alpha=0.6, linewidth=0, label=label)
        below = above


def render(prometheus: str, board: dict[str, Any], target: Path, *, end: float, minutes: float) -> None:
    panels = sorted(board["panels"], key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    rows = math.ceil(len(panels) / COLUMNS)
    figure, grid = plt.subplots(rows, COLUMNS, figsize=(15, 2.9 * rows + 0.9), squeeze=False, layout="constrained")
    cells = list(grid.flat)
    for axes, panel in zip(cells, panels, strict=False):
        draw(axes, panel, lines_of(prometheus, panel, end=end, seconds=minutes * 60), minutes)
    for axes in cells[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(
        f"{board['title']}  The dashboard's queries, drawn from Prometheus with matplotlib; not a Grafana screenshot. "
        f"Minutes before {time.strftime('%H:%M', time.gmtime(end))} UTC.",
        fontsize=10,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=80)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prometheus", help="its address, such as http://localhost:9090")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--ago", type=float, default=0.0, help="how many minutes ago the picture ends")
    parser.add_argument("--into", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    end = time.time() - 60 * arguments.ago
    for path in sorted(FOLDER.glob("*.json")):
        target = arguments.into / f"dashboard-{path.stem}.png"
        board = json.loads(path.read_text())
        render(arguments.prometheus.rstrip("/"), board, target, end=end, minutes=arguments.minutes)
        print(target)


if __name__ == "__main__":
    main()
