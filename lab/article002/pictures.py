"""Pictures of article 002 from raw.csv and calls.csv: one of bursts and shares, one of each second."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.article002.rows import PER_SECOND, REPLICAS
from lab.bench import Row
from lab.results import read_rows
from lab.timeline import configure_matplotlib, save

COLOURS = dict(zip(REPLICAS, ("#31688e", "#f08a24", "#6aa84f"), strict=True))
DARK, RED = "#333333", "#c0392b"
LINES = ("#333333", "#c0392b", "#2a9d8f", "#8e6bbf", "#d4a017", "#1f5fbf", "#b56576")
COLUMNS = 3
SERVERS = "servers.svg"
# For pages, of runs in the test cluster.
CLUSTER = "cluster.png"
IN_CLUSTER = ("scaled", "adopted")


def draw(folder: Path, titles: dict[str, str]) -> Path:
    """Draws the pictures beside their data; returns the overview. Bursts alone have no picture of seconds, and runs in
    the test cluster have nothing else.
    """
    configure_matplotlib()
    rows = read_rows(folder / "raw.csv")
    if all(row["kind"] in IN_CLUSTER for row in rows):
        seconds = read_rows(folder / PER_SECOND)
        save(_each_second(rows, seconds, titles), folder / CLUSTER)
        return save(_each_second(rows, seconds, titles), folder / "plot.svg")
    if (folder / PER_SECOND).is_file():
        save(_each_second(rows, read_rows(folder / PER_SECOND), titles), folder / SERVERS)
    return save(_overview(rows, titles), folder / "plot.svg")


def _overview(rows: Sequence[Row], titles: dict[str, str]) -> Any:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(12.6, 8.4))
    bursts = _by_variant(rows, titles, "bursts")
    colours = dict(zip(bursts, LINES, strict=False))
    _sizes(panels[0][0], bursts, titles, colours, "failed_share", "failed calls, %")
    _sizes(panels[0][1], bursts, titles, colours, "p50_ms", "median latency, ms (failed calls too)")
    _largest_burst(panels[1][0], bursts, titles, colours)
    _shares(panels[1][1], _by_variant(rows, titles, "shares"), titles)
    if bursts:
        # With few concurrent calls all variants are equally fast, so the legend fits there.
        panels[0][1].legend(frameon=False, fontsize=8, loc="upper left")
    figure.tight_layout()
    return figure


def _by_variant(rows: Sequence[Row], titles: dict[str, str], kind: str) -> dict[str, list[Row]]:
    """Returns the rows of each measured variant, in the order of the experiment."""
    found = {variant: [row for row in rows if (row["variant"], row["kind"]) == (variant, kind)] for variant in titles}
    return {variant: own for variant, own in found.items() if own}


def _sizes(
    panel: Any,
    bursts: dict[str, list[Row]],
    titles: dict[str, str],
    colours: dict[str, str],
    column: str,
    label: str,
) -> None:
    """Draws one column by the number of concurrent calls: a dot for each repetition, a line through the medians."""
    if not bursts:
        panel.set_axis_off()
        return
    for variant, rows in bursts.items():
        by_size: dict[int, list[float]] = {}
        for row in rows:
            if row["calls_at_once"]:
                value = 100 * row["failed"] / row["calls"] if column == "failed_share" else row[column]
                by_size.setdefault(row["calls_at_once"], []).append(value)
        medians = [statistics.median(values) for values in by_size.values()]
        panel.plot(list(by_size), medians, color=colours[variant], label=titles[variant], linewidth=1.4)
        for size, values in by_size.items():
            panel.plot([size] * len(values), values, "o", color=colours[variant], markersize=3, alpha=0.6)
    sizes = sorted({row["calls_at_once"] for rows in bursts.values() for row in rows if row["calls_at_once"]})
    panel.set_xscale("log")
    panel.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
    panel.minorticks_off()
    panel.set_xlabel("calls at once")
    panel.set_ylim(bottom=0)
    _name(panel, label)


def _largest_burst(panel: Any, bursts: dict[str, list[Row]], titles: dict[str, str], colours: dict[str, str]) -> None:
    shown = []
    for variant, rows in bursts.items():
        values = [row["largest"] for row in rows if row["largest"] is not None]
        if not values:
            continue
        panel.barh(len(shown), statistics.median(values), color=colours[variant], alpha=0.55, height=0.6)
        panel.plot(values, [len(shown)] * len(values), "o", color=DARK, markersize=3.5)
        shown.append(titles[variant])
    if not shown:
        # A quick run skips this search.
        panel.set_axis_off()
        return
    panel.set_yticks(range(len(shown)), shown)
    panel.invert_yaxis()
    panel.set_xlim(left=0)
    panel.set_xlabel("calls at once; each repetition a dot, the median a bar")
    _name(panel, "most calls at once of which none fails", axis="x")


def _shares(panel: Any, variants: dict[str, list[Row]], titles: dict[str, str]) -> None:
    """Draws the shares of the least even repetition."""
    if not variants:
        panel.set_axis_off()
        return
    for height, rows in enumerate(variants.values()):
        worst = max(rows, key=lambda row: max(row[f"calls.{name}"] for name in REPLICAS))
        left = 0
        for name in REPLICAS:
            panel.barh(height, worst[f"calls.{name}"], left=left, color=COLOURS[name], height=0.6)
            left += worst[f"calls.{name}"]
    panel.set_yticks(range(len(variants)), [titles[variant] for variant in variants])
    panel.invert_yaxis()
    panel.set_xlabel("calls; the least even repetition")
    _name(panel, "answered calls by server", axis="x")


def _each_second(rows: Sequence[Row], seconds: Sequence[Row], titles: dict[str, str]) -> Any:
    """Draws the calls of each second by server: one panel for each variant, first repetition."""
    from matplotlib import pyplot

    variants = [variant for variant in titles if any(row["variant"] == variant for row in seconds)]
    columns = min(COLUMNS, len(variants))
    lines = -(-len(variants) // columns)
    figure, panels = pyplot.subplots(lines, columns, figsize=(4.2 * columns, 2.4 * lines), squeeze=False, sharey=True)
    for panel in panels.flat[len(variants) :]:
        panel.set_axis_off()
    for panel, variant in zip(panels.flat, variants, strict=False):
        own = [row for row in seconds if (row["variant"], row["repetition"]) == (variant, 1)]
        _second_by_second(panel, own)
        summary = next(row for row in rows if (row["variant"], row["repetition"]) == (variant, 1))
        panel.set_xlabel("seconds")
        if summary["published_second"] is not None:
            panel.axvline(summary["published_second"], color=DARK, linewidth=1.1, linestyle="--")
            event = "Service annotated" if summary["kind"] == "adopted" else f"{REPLICAS[-1]} published"
            panel.set_xlabel(f"seconds (dashed: {event})")
        panel.set_title(titles[variant], fontsize=9.5, loc="left", fontweight="bold")
        panel.xaxis.get_major_locator().set_params(integer=True)
    for line in panels:
        line[0].set_ylabel("calls/s")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in (*COLOURS.values(), RED)]
    figure.legend(handles, (*REPLICAS, "failed"), loc="upper right", ncols=4, frameon=False)
    figure.suptitle("Calls by the server that answered", x=0.01, ha="left", fontweight="bold")
    figure.tight_layout()
    return figure


def _second_by_second(panel: Any, seconds: Sequence[Row]) -> None:
    times = [row["second"] - 0.5 for row in seconds]
    columns = (*REPLICAS, "failed")
    below = [0] * len(seconds)
    for name in columns:
        values = [row[name] for row in seconds]
        panel.bar(times, values, bottom=below, width=1.0, color=COLOURS.get(name, RED), linewidth=0)
        below = [base + value for base, value in zip(below, values, strict=True)]
    panel.set_xlim(0, len(seconds))


def _name(panel: Any, title: str, axis: str = "y") -> None:
    panel.set_title(title, fontsize=9.5, loc="left", fontweight="bold")
    panel.grid(axis=axis, alpha=0.25)
    panel.set_axisbelow(True)
