"""Pictures of runs that add a second replica, from seconds.csv and raw.csv: two of all variants, one of each.

Time starts when the new replica is published, or with the first user if there is none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.bench import Row
from lab.results import read_rows

REPLICAS = ("app-1", "app-2")
COLOURS = {"app-1": "#31688e", "app-2": "#f08a24"}
DARK, LIGHT, RED = "#333333", "#9a9a9a", "#c0392b"
# An application that takes a second answers in bursts, so rates and latencies are means over this many seconds.
SMOOTHED_SECONDS = 3
COLUMNS = 3
# Variants of pictures for pages: the article's, and Sheave beside it.
PAIRS = {"pair.png": ("clusterip", "sheave"), "cluster.png": ("cluster-clusterip", "cluster-sheave")}


@dataclass(frozen=True)
class Run:
    """One repetition of one variant."""

    variant: str
    summary: Row
    seconds: list[Row]

    @property
    def origin(self) -> float:
        return self.summary["published_second"] or 0

    @property
    def times(self) -> list[float]:
        return [row["second"] - 0.5 - self.origin for row in self.seconds]

    def moment(self, name: str) -> float | None:
        """Returns the relative time of an event, if it happened."""
        second = self.summary[name]
        return None if second is None else second - self.origin

    def column(self, name: str) -> list[float]:
        """Returns a column; missing values are NaN and not drawn."""
        return [math.nan if row[name] is None else row[name] for row in self.seconds]

    def smooth(self, name: str) -> list[float]:
        return moving_average(self.column(name))


def moving_average(values: Sequence[float]) -> list[float]:
    """Returns the mean around each value; the window is shorter at the ends and over missing values."""
    reach = SMOOTHED_SECONDS // 2
    windows = [values[max(0, at - reach) : at + reach + 1] for at in range(len(values))]
    numbers = [[value for value in window if not math.isnan(value)] for window in windows]
    return [statistics.fmean(window) if window else math.nan for window in numbers]


def draw(folder: Path, titles: dict[str, str]) -> Path:
    """Draws the pictures of all variants beside their data; returns the one with the requests by replica."""
    configure_matplotlib()
    runs = read(folder)
    variants = [variant for variant in titles if variant in runs]
    for name, pair in PAIRS.items():
        if set(pair) <= set(variants):
            save(_overview(runs, pair, titles), folder / name)
    save(_rates(runs, variants, titles), folder / "rates.svg")
    return save(_overview(runs, variants, titles), folder / "plot.svg")


def draw_details(folder: Path, titles: dict[str, str], out: Path) -> None:
    """Draws a picture of each variant into a separate folder."""
    configure_matplotlib()
    for variant, runs in read(folder).items():
        save(_details(median_runs(runs), titles[variant]), out / f"{variant}.svg")


def read(folder: Path) -> dict[str, list[Run]]:
    """Reads the runs of a folder by variant."""
    seconds = read_rows(folder / "seconds.csv")
    runs: dict[str, list[Run]] = {}
    for summary in read_rows(folder / "raw.csv"):
        key = (summary["variant"], summary["repetition"])
        rows = [row for row in seconds if (row["variant"], row["repetition"]) == key]
        runs.setdefault(summary["variant"], []).append(Run(summary["variant"], summary, rows))
    return runs


def median_runs(runs: Sequence[Run]) -> Run:
    """Returns the repetition with the median result of each variant."""
    ordered = sorted(runs, key=lambda run: run.summary["rps_after"] or run.summary["rps_before"])
    return ordered[len(ordered) // 2]


def configure_matplotlib() -> None:
    """Sets up matplotlib for every picture."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            # The same data give the same file, and text stays text.
            "svg.hashsalt": "lab",
            "svg.fonttype": "none",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )


def _overview(runs: dict[str, list[Run]], variants: Sequence[str], titles: dict[str, str]) -> Any:
    """Draws requests per second by replica, one panel for each variant, all to one scale."""
    from matplotlib import pyplot

    columns = min(COLUMNS, len(variants))
    rows = -(-len(variants) // columns)
    figure, panels = pyplot.subplots(rows, columns, figsize=(4.2 * columns, 2.5 * rows), squeeze=False, sharey=True)
    for panel in panels.flat[len(variants) :]:
        panel.set_axis_off()
    for panel, variant in zip(panels.flat, variants, strict=False):
        run = median_runs(runs[variant])
        _stack(panel, run)
        _moments(panel, run)
        panel.set_title(titles[variant], fontsize=9.5, loc="left", fontweight="bold")
        panel.set_xlabel(_time_label(run))
    for row in panels:
        row[0].set_ylabel("requests/s")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS[name]) for name in REPLICAS]
    figure.legend(handles, REPLICAS, loc="upper right", ncols=2, frameon=False)
    figure.suptitle(f"Answered requests by replica, mean of {SMOOTHED_SECONDS} s", x=0.01, ha="left", fontweight="bold")
    figure.tight_layout()
    return figure


def _details(run: Run, title: str) -> Any:
    """Draws the statistics of Locust, and those of the node beside them."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 3, figsize=(12.6, 5.4), sharex=True)
    _throughput(panels[0][0], run)
    _latency(panels[0][1], run)
    _users(panels[0][2], run)
    _by_replica(panels[1][0], run)
    _cpu(panels[1][1], run)
    _connections(panels[1][2], run)
    for panel in panels.flat:
        _moments(panel, run)
        panel.set_ylim(bottom=0)
    for panel in panels[1]:
        panel.set_xlabel(_time_label(run))
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.tight_layout()
    return figure


def _throughput(panel: Any, run: Run) -> None:
    panel.plot(run.times, run.smooth("answers"), color=DARK, label="answered")
    if any(run.column("failures")):
        panel.plot(run.times, run.smooth("failures"), color=RED, label="failed")
    _name(panel, "requests/s", legend=True)


def _latency(panel: Any, run: Run) -> None:
    for name, colour in (("p50", DARK), ("p95", LIGHT)):
        panel.plot(run.times, [value / 1000 for value in run.smooth(f"{name}_ms")], color=colour, label=name)
    _name(panel, "latency, s", legend=True)


def _users(panel: Any, run: Run) -> None:
    panel.step(run.times, run.column("users"), color=DARK, where="mid")
    _name(panel, "users")


def _by_replica(panel: Any, run: Run) -> None:
    _stack(panel, run)
    _name(panel, "requests/s by replica, stacked")
    panel.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    panel.margins(y=0.2)


def _cpu(panel: Any, run: Run) -> None:
    for name in REPLICAS:
        panel.plot(run.times, [value * 1000 for value in run.column(f"cpu.{name}")], color=COLOURS[name], label=name)
    quota = run.summary["millicores"]
    panel.axhline(quota, color=RED, linewidth=0.9, linestyle=":", label="quota")
    _name(panel, "CPU, millicores (a start may take more)", legend=True)
    panel.set_ylim(0, 1.6 * quota)


def _connections(panel: Any, run: Run) -> None:
    for name in REPLICAS:
        panel.plot(run.times, run.column(f"connections.{name}"), color=COLOURS[name], label=name)
    _name(panel, "connections of replicas, established", legend=True)


def _rates(runs: dict[str, list[Run]], variants: Sequence[str], titles: dict[str, str]) -> Any:
    """Draws rates before and after: a dot for each repetition, a bar for the median."""
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(9, 0.62 * len(variants) + 1.2))
    for height, variant in enumerate(variants):
        for offset, name, colour in ((-0.19, "rps_before", LIGHT), (0.19, "rps_after", COLOURS["app-2"])):
            values = [run.summary[name] for run in runs[variant] if run.summary[name] is not None]
            if not values:
                continue
            panel.barh(height + offset, statistics.median(values), height=0.34, color=colour, alpha=0.75)
            panel.plot(values, [height + offset] * len(values), "o", color=DARK, markersize=3.5)
    panel.set_yticks(range(len(variants)), [titles[variant] for variant in variants])
    panel.invert_yaxis()
    panel.set_xlabel("requests/s; each repetition a dot, the median a bar")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour, alpha=0.75) for colour in (LIGHT, COLOURS["app-2"])]
    labels = ["before the second replica", "from 5 s after it was published"]
    panel.legend(handles, labels, frameon=False, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2)
    figure.tight_layout()
    return figure


def _stack(panel: Any, run: Run) -> None:
    shares = [run.smooth(f"answered.{name}") for name in REPLICAS]
    panel.stackplot(run.times, *shares, colors=[COLOURS[name] for name in REPLICAS], labels=REPLICAS, alpha=0.9)
    panel.set_xlim(run.times[0], run.times[-1])


def _moments(panel: Any, run: Run) -> None:
    """Marks when the new replica was published, and when the old one was withdrawn."""
    for name, colour in (("published_second", DARK), ("withdrawn_second", RED)):
        if (moment := run.moment(name)) is not None:
            panel.axvline(moment, color=colour, linewidth=1.1, linestyle="--")


def _time_label(run: Run) -> str:
    label = "seconds from app-2's publication" if run.summary["published_second"] else "seconds"
    return f"{label} (red: app-1 withdrawn)" if run.summary["withdrawn_second"] else label


def _name(panel: Any, title: str, *, legend: bool = False) -> None:
    panel.set_title(title, fontsize=9, loc="left")
    panel.grid(axis="y", alpha=0.25)
    if legend:
        panel.legend(frameon=False, fontsize=8, loc="best")


def save(figure: Any, path: Path) -> Path:
    """Writes a picture and closes it."""
    from matplotlib import pyplot

    figure.savefig(path, dpi=144, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return path
