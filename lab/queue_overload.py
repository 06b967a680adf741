"""Draws docs/internals/queue.svg from the table that `sim --overload` prints: python -m lab.queue_overload."""

from __future__ import annotations

from pathlib import Path

from lab.paths import REPOSITORY
from lab.results import read_rows
from lab.timeline import configure_matplotlib, save

FOLDER = REPOSITORY / "docs" / "internals"
COLOURS = {"patient": "#777777", "foresight": "#e69f00", "target": "#0072b2", "deadline": "#009e73"}


def draw(table: Path, picture: Path) -> None:
    """Draws on the left the wait of served clients (solid p99, dotted median), on the right the useful work."""
    configure_matplotlib()
    from matplotlib import pyplot

    rows = read_rows(table)
    chart, (waits, work) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for queue, colour in COLOURS.items():
        own = [row for row in rows if row["queue"] == queue]
        loads = [row["load"] for row in own]
        for column, style in (("wait_p99", "-"), ("wait_p50", ":")):
            waits.plot(loads, [row[column] for row in own], style, color=colour)
        work.plot(loads, [100 * row["in_time"] for row in own], color=colour, label=queue)
    waits.set_ylabel("wait of served clients, s (p99, dotted: p50)")
    work.set_ylabel("capacity used for clients that still waited, %")
    for panel in (waits, work):
        panel.set_xlabel("load, as a share of capacity")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    chart.legend(loc="outside upper center", ncols=len(COLOURS))
    save(chart, picture)


if __name__ == "__main__":
    draw(FOLDER / "queue.csv", FOLDER / "queue.svg")
