"""Draws docs/internals/pickers.svg from the table that `sim --study` prints: python -m lab.pickers."""

from __future__ import annotations

import csv
from pathlib import Path

from lab.paths import REPOSITORY

FOLDER = REPOSITORY / "docs" / "internals"
ENDPOINTS = ("3", "10", "100", "1000")
ROWS = (
    ("low", "0", "even service times"),
    ("high", "0", "uneven service times"),
    ("low", "1", "even, one endpoint 5x slower"),
    ("high", "1", "uneven, one endpoint 5x slower"),
)
COLOURS = {
    "LeastLoad": "#0072b2",
    "PeakEwma": "#009e73",
    "ConsistentHash": "#cc79a7",
    "RoundRobin": "#e69f00",
    "Random": "#d55e00",
    "Maglev": "#777777",
}
#: Limits of the logarithmic axis; above the top, clients have already given up.
SHORTEST, LONGEST = 0.1, 2000.0


def draw(table: Path, picture: Path) -> None:
    """Draws one panel for each number of endpoints and kind of service; solid is the 99th percentile, dotted the
    median.
    """
    import matplotlib

    matplotlib.use("svg")
    # The same data give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "lab"
    # Text stays text, which makes the file a third as long.
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    with table.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    chart, panels = pyplot.subplots(
        len(ROWS), len(ENDPOINTS), figsize=(13, 12), sharex=True, sharey=True, layout="constrained"
    )
    for line, (variance, slow, title) in zip(panels, ROWS, strict=True):
        for panel, endpoints in zip(line, ENDPOINTS, strict=True):
            shown = {"variance": variance, "slow_endpoints": slow, "endpoints": endpoints}
            _draw_panel(panel, [row for row in rows if shown.items() <= row.items()])
            panel.set_title(f"{endpoints} endpoints, {title}", fontsize=8)
        line[0].set_ylabel("wait, in mean service times")
    for panel in panels[-1]:
        panel.set_xlabel("load, as a share of capacity")
    handles, labels = panels[0][0].get_legend_handles_labels()
    chart.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=9)
    chart.savefig(picture, metadata={"Date": None})
    pyplot.close(chart)


def _draw_panel(panel, rows: list[dict[str, str]]) -> None:
    for picker, colour in COLOURS.items():
        own = [row for row in rows if row["picker"] == picker]
        loads = [float(row["load"]) for row in own]
        for column, style, label in (("wait_p99", "-", picker), ("wait_p50", ":", None)):
            waits = [max(float(row[column]), SHORTEST) for row in own]
            panel.plot(loads, waits, style, color=colour, label=label, linewidth=1.3)
    panel.set_yscale("log")
    panel.set_ylim(SHORTEST, LONGEST)
    panel.grid(alpha=0.3)


if __name__ == "__main__":
    draw(FOLDER / "pickers.csv", FOLDER / "pickers.svg")
