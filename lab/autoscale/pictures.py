"""Pictures of scaled days from raw.csv and minutes.csv: the whole day, a burst, cost against refusals, and signals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.autoscale import days
from lab.bench import Row
from lab.results import read_rows
from lab.timeline import configure_matplotlib, save

COLOURS = {
    "demand": "#0072b2",
    "refusals": "#d55e00",
    "busy": "#009e73",
    "in-flight": "#cc79a7",
    "need": "#555555",
    "refusals-alone": "#e69f00",
}
NEEDED = "#d8d8d8"
#: Offsets of the setting labels from their dots, in points, so that labels of adjacent dots do not overlap.
LABELS = {"busy": (-5, -9, "right"), "in-flight": (5, 3, "left")}
BURST, COST = "burst.svg", "cost.svg"
SIGNAL_COLOURS = {
    "cpu": "#009e73",
    "demand": "#0072b2",
    "demand-slow-down": "#56b4e9",
    "refusals": "#d55e00",
    "keda-push": "#cc79a7",
    "keda-poll": "#e69f00",
}
#: Minutes shown before and after a burst.
MINUTES_BEFORE, MINUTES_AFTER = 5, 25


def draw(folder: Path, titles: dict[str, str]) -> Path:
    """Draws the pictures beside their data; returns the picture of the whole day."""
    configure_matplotlib()
    rows = read_rows(folder / "raw.csv")
    minutes = _by_scaler(read_rows(folder / days.MINUTES), titles)
    if points := days.trade_points([row for row in rows if row["part"] == days.TRADE]):
        save(_cost(points), folder / COST)
    save(_burst(minutes, titles), folder / BURST)
    return save(_day(minutes, titles), folder / "plot.svg")


def _by_scaler(minutes: Sequence[Row], titles: dict[str, str]) -> dict[str, list[Row]]:
    """Returns the rows of each scaler in the order of the experiment."""
    found = {scaler: [row for row in minutes if row["scaler"] == scaler] for scaler in titles}
    return {scaler: own for scaler, own in found.items() if own}


def _day(minutes: dict[str, list[Row]], titles: dict[str, str]) -> Any:
    """Draws pods against the needed pods, and refusals beside them, one line for each scaler."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(minutes), 2, figsize=(12.6, 1.9 * len(minutes) + 0.6), sharex=True, sharey="col", squeeze=False
    )
    for (left, right), (scaler, rows) in zip(panels, minutes.items(), strict=True):
        hours = [row["minute"] / 60 for row in rows]
        _needed(left, hours, rows)
        left.plot(hours, [row["pods"] for row in rows], color=COLOURS[scaler], linewidth=1.0)
        left.set_title(titles[scaler], fontsize=9.5, loc="left", fontweight="bold")
        left.set_ylabel("pods")
        # One filled shape instead of a bar for each minute, with one step for all minutes of equal height.
        steps = [next(equal) for _, equal in itertools.groupby(rows, lambda row: row["refused"])]
        edges = [*(step["minute"] / 60 for step in steps), hours[-1] + 1 / 60]
        heights = [step["refused"] / 60 for step in steps]
        right.stairs(heights, edges, fill=True, color=COLOURS[scaler], linewidth=0.8)
        right.set_ylabel("429/s")
        refused, lost = (sum(row[name] for row in rows) for name in ("refused", "lost"))
        right.set_title(f"{refused:,} answers of 429, {lost:,} clients lost", fontsize=9, loc="left")
    for panel in panels[-1]:
        panel.set_xlabel("hour of the day")
        panel.set_xlim(0, hours[-1] + 1 / 60)
        panel.set_xticks(range(0, round(hours[-1]) + 1, 3 if hours[-1] > 6 else 1))
    for panel in panels.flat:
        panel.set_ylim(bottom=0)
        panel.grid(axis="y", alpha=0.25)
    figure.suptitle("Pods that are paid for; grey: what the requests keep busy", x=0.01, ha="left", fontsize=10)
    figure.tight_layout()
    return figure


def _burst(minutes: dict[str, list[Row]], titles: dict[str, str]) -> Any:
    """Draws the longest burst, minute by minute."""
    from matplotlib import pyplot

    first = next(iter(minutes.values()))
    begin, end = _longest_burst(first)
    window = slice(max(0, begin - MINUTES_BEFORE), end + MINUTES_AFTER)
    figure, (pods, refused) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True)
    times = [row["minute"] + 0.5 - begin for row in first[window]]
    _needed(pods, times, first[window])
    for scaler, rows in minutes.items():
        style = {"color": COLOURS[scaler], "linewidth": 1.5, "linestyle": ":" if scaler == "need" else "-"}
        pods.plot(times, [row["pods"] for row in rows[window]], label=titles[scaler], **style)
        refused.plot(times, [row["refused"] / 60 for row in rows[window]], **style)
    pods.set_ylabel("pods, starting ones included")
    refused.set_ylabel("answers of 429 per second")
    refused.set_xlabel("minutes from the begin of the burst")
    for panel in (pods, refused):
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.25)
    figure.legend(loc="upper left", ncols=2, frameon=False, fontsize=8.5)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.03 * (1 + (len(minutes) + 1) // 2)))
    return figure


def _longest_burst(rows: Sequence[Row]) -> tuple[int, int]:
    """Returns the first minute of the longest burst, and the minute after it."""
    bursts: list[list[int]] = []
    for row in rows:
        if row["burst"]:
            if not bursts or bursts[-1][1] != row["minute"]:
                bursts.append([row["minute"], row["minute"]])
            bursts[-1][1] = row["minute"] + 1
    begin, end = max(bursts, key=lambda burst: burst[1] - burst[0], default=(0, 0))
    return begin, end


def _needed(panel: Any, times: Sequence[float], rows: Sequence[Row]) -> None:
    # fill_between() would repeat every point on the zero line.
    heights = [0, *(row["needed"] for row in rows), 0]
    panel.fill([times[0], *times, times[-1]], heights, color=NEEDED, linewidth=0, label="kept busy")


def _cost(points: dict[str, dict[str, Row]]) -> Any:
    """Draws cost against refusals for each setting of each scaler."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(12.6, 5.2), sharex=True)
    for panel, (name, label) in zip(panels, (("refused", "answers of 429"), ("lost", "clients lost")), strict=True):
        for scaler, settings in points.items():
            costs = [point["pod_hours"] for point in settings.values()]
            shares = [100 * point[name] for point in settings.values()]
            panel.plot(costs, shares, "o-", color=COLOURS[scaler], label=scaler, linewidth=1.2, markersize=4)
            right, up, side = LABELS.get(scaler, (5, 3, "left"))
            for setting, cost, share in zip(settings, costs, shares, strict=True):
                panel.annotate(
                    f"{setting.partition('=')[2]} %",
                    (cost, share),
                    (right, up),
                    textcoords="offset points",
                    ha=side,
                    fontsize=7,
                    color=COLOURS[scaler],
                )
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("{x:g}")
        panel.tick_params(axis="y", which="both", labelsize=8)
        panel.set_xlabel("pod-hours paid, in those that are kept busy")
        panel.set_title(f"{label}, % of clients", fontsize=9.5, loc="left", fontweight="bold")
        panel.grid(alpha=0.25, which="both")
    panels[0].legend(frameon=False, fontsize=8.5)
    figure.tight_layout()
    return figure


def draw_worlds(folder: Path) -> Path:
    """Draws what each signal costs in each world, beside the data."""
    configure_matplotlib()
    return save(_worlds(days.signal_points(read_rows(folder / "raw.csv"))), folder / "plot.svg")


def _worlds(worlds: dict[str, dict[str, Row]]) -> Any:
    """Draws what each signal costs and refuses, and how long its clients wait, by world."""
    from matplotlib import pyplot

    columns = (
        ("pod_hours", "pod-hours / busy"),
        ("node_hours", "node-hours / busy"),
        ("refused", "429 per 100 clients"),
        ("wait_p99", "wait, p99, s"),
    )
    figure, panels = pyplot.subplots(
        len(worlds), len(columns), figsize=(12.6, 1.9 * len(worlds) + 0.5), squeeze=False
    )
    for row, (world, signals) in zip(panels, worlds.items(), strict=True):
        for panel, (name, label) in zip(row, columns, strict=True):
            names = list(signals)
            values = [signals[signal][name] for signal in names]
            if not any(values):
                # Nodes that always exist.
                panel.set_axis_off()
                continue
            bars = panel.barh(names, values, color=[SIGNAL_COLOURS[signal] for signal in names])
            panel.bar_label(bars, [f"{value:.2f}" for value in values], fontsize=7.5, padding=2)
            panel.invert_yaxis()
            panel.set_xlim(0, 1.2 * max(*values, 0.01))
            panel.tick_params(labelsize=8)
            panel.set_title(f"{world}: {label}", fontsize=9, loc="left")
            if panel is not row[0]:
                panel.set_yticklabels([])
    figure.tight_layout()
    return figure
