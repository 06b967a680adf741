"""The one plotting program: raw.csv in, plot.svg out."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

COLUMNS = 3
PANEL_INCHES = (4.2, 2.3)


def draw(folder: Path, title: str) -> Path:
    """A panel for each case, a line of dots for each arm: every round is a dot, the stroke is the median."""
    import matplotlib

    matplotlib.use("svg")
    # The same data give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "lab"
    from matplotlib import pyplot

    cases = _read(folder / "raw.csv")
    everyone = sorted({arm for _, arms in cases.values() for arm in arms})
    rows = -(-len(cases) // COLUMNS)
    size = (PANEL_INCHES[0] * COLUMNS, PANEL_INCHES[1] * rows)
    chart, panels = pyplot.subplots(rows, COLUMNS, figsize=size, squeeze=False)
    for panel in panels.flat[len(cases) :]:
        panel.set_axis_off()
    for panel, (case, (unit, arms)) in zip(panels.flat, cases.items(), strict=False):
        for height, (arm, costs) in enumerate(arms.items()):
            colour = f"C{everyone.index(arm) % 10}"
            panel.plot(costs, [height] * len(costs), "o", color=colour, alpha=0.45, markersize=4, markeredgewidth=0)
            panel.plot([statistics.median(costs)] * 2, [height - 0.3, height + 0.3], "k-", linewidth=1.5)
        panel.set_yticks(range(len(arms)), list(arms))
        panel.invert_yaxis()
        panel.set_xlim(0, 1.05 * max(map(max, arms.values())))
        panel.set_xlabel(unit)
        panel.set_title(case, fontsize=10)
        panel.grid(axis="x", alpha=0.3)
    chart.suptitle(title)
    chart.tight_layout()
    path = folder / "plot.svg"
    chart.savefig(path, metadata={"Date": None})
    pyplot.close(chart)
    return path


def _read(path: Path) -> dict[str, tuple[str, dict[str, list[float]]]]:
    """By case: the unit, and by arm the costs."""
    cases: dict[str, tuple[str, dict[str, list[float]]]] = {}
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            _, arms = cases.setdefault(row["case"], (row["unit"], {}))
            arms.setdefault(row["arm"], []).append(float(row["cost"]))
    return {case: (unit, dict(sorted(arms.items()))) for case, (unit, arms) in sorted(cases.items())}
