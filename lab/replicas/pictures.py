"""Picture of a run: waits and requests over the cap, by case and arm."""

from __future__ import annotations

from pathlib import Path

from lab.bench import Row
from lab.figure import Figure
from lab.results import read_rows

ROW_INCHES = 0.38
FRAME_INCHES = 1.6
# Panels: column, label, and the smallest value of the axis, at which lower ones are drawn.
PANELS = (
    ("mean_wait_ms", "mean wait, ms", 0.1),
    ("p99_wait_ms", "99th percentile of the wait, ms", 1.0),
    ("over_percent", "requests over the cap, %", 0.01),
)
MARKERS = "osD^v<>P"


def draw(folder: Path, title: str) -> Path:
    """Draws a panel for each measure: a row for each case, a mark for each arm; medians with all rounds behind."""
    import matplotlib

    matplotlib.use("svg")
    # The same data give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "lab"
    from matplotlib import pyplot

    rows = [_with_share(row) for row in read_rows(folder / "raw.csv") if row["case"].endswith((": mean", ": over"))]
    cases = sorted({_case(row) for row in rows})
    arms = sorted({row["arm"] for row in rows})
    height = FRAME_INCHES + ROW_INCHES * len(cases)
    size = (4.6 * len(PANELS), height)
    chart, panels = pyplot.subplots(1, len(PANELS), figsize=size, sharey=True, layout="constrained")
    for panel, (column, label, least) in zip(panels, PANELS, strict=True):
        for number, arm in enumerate(arms):
            _draw_arm(panel, rows, cases, arm, number, column, least)
        panel.set_xscale("log")
        panel.set_xlim(left=least * 0.8)
        panel.set_xlabel(label)
        panel.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(cases)), cases)
    panels[0].invert_yaxis()
    marks = [_mark(pyplot, arm, number) for number, arm in enumerate(arms)]
    chart.legend(handles=marks, loc="outside lower center", ncols=len(arms), fontsize=9)
    chart.suptitle(f"{title}; marks at the left edge are at most {', '.join(f'{least:g}' for *_, least in PANELS)}")
    path = folder / "plot.svg"
    chart.savefig(path, metadata={"Date": None})
    pyplot.close(chart)
    return path


def _draw_arm(panel, rows: list[Row], cases: list[str], arm: str, number: int, column: str, least: float) -> None:
    marker, colour, shift = MARKERS[number % len(MARKERS)], f"C{number % 10}", 0.1 * (number % 3 - 1)
    for height, case in enumerate(cases):
        values = [max(row[column], least) for row in rows if _case(row) == case and row["arm"] == arm]
        if not values:
            continue
        places = [height + shift] * len(values)
        panel.plot(values, places, marker, color=colour, alpha=0.3, markersize=3, markeredgewidth=0)
        panel.plot(Figure.of(values, "").value, height + shift, marker, color=colour, markersize=6)


def _mark(pyplot, arm: str, number: int):
    """Returns an arm's entry in the legend."""
    return pyplot.Line2D([], [], marker=MARKERS[number % len(MARKERS)], color=f"C{number % 10}", linewidth=0, label=arm)


def _with_share(row: Row) -> Row:
    return row | {"over_percent": 100 * row["over"] / row["requests"]}


def _case(row: Row) -> str:
    return row["case"].partition(":")[0]
