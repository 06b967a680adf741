"""Pictures of article 001, one for each part of a run.

plot.svg shows the throughput by entry point; concurrency.svg the article's chart of sessions; learning.svg the learned
limits over time; errors.svg the 502s; scaling.svg pods and refusals.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.article001.figures import error_count
from lab.article001.learning import LEARNED
from lab.article001.scaling import SCALED
from lab.article001.throughput import CONCURRENCY
from lab.bench import Row
from lab.results import read_rows
from lab.timeline import configure_matplotlib, save

DARK, LIGHT, RED, BLUE, ORANGE = "#333333", "#9a9a9a", "#c0392b", "#31688e", "#f08a24"
PODS = ("#31688e", "#f08a24", "#6aa84f", "#8e6bbf", "#d4a017", "#7a4b2a")
OURS = ("sheave-cap", "sheave-auto", "502-sheave")
DISTRIBUTIONS = {"exponential": "exponential service times", "uniform": "uniform service times, ±50 %"}
# All values above twice the workers of a pod share one colour.
MOST_SHOWN = 10
PICTURES = ("concurrency.svg", "learning.svg", "errors.svg", "scaling.svg")


def draw(folder: Path, titles: dict[str, str]) -> Path:
    """Draws the pictures that the run has data for, beside the data; returns plot.svg."""
    configure_matplotlib()
    rows = read_rows(folder / "raw.csv")
    of_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in ("throughput", "errors", "scaling")}
    if (folder / CONCURRENCY).is_file():
        save(_concurrency(read_rows(folder / CONCURRENCY), titles), folder / "concurrency.svg")
    if (folder / LEARNED).is_file():
        save(_learning(read_rows(folder / LEARNED)), folder / "learning.svg")
    if of_kind["errors"]:
        save(_errors(of_kind["errors"], titles), folder / "errors.svg")
    if of_kind["scaling"]:
        save(_scaling(read_rows(folder / SCALED), of_kind["scaling"], titles), folder / "scaling.svg")
    return save(_throughput(of_kind["throughput"], titles), folder / "plot.svg")


def _throughput(rows: Sequence[Row], titles: dict[str, str]) -> Any:
    """Draws requests per second and response times, one column for each distribution."""
    from matplotlib import pyplot

    found = [name for name in DISTRIBUTIONS if any(row["distribution"] == name for row in rows)]
    variants = [variant for variant in titles if any(row["variant"] == variant for row in rows)]
    if not found:
        return _empty_picture("no throughput was measured in this run")
    height = 0.36 * len(variants) + 1.3
    figure, panels = pyplot.subplots(
        len(found), 2, figsize=(12.6, height * len(found)), squeeze=False, sharey=True, sharex="col"
    )
    for (rates, times), distribution in zip(panels, found, strict=True):
        for place, variant in enumerate(variants):
            own = [row for row in rows if (row["variant"], row["distribution"]) == (variant, distribution)]
            colour = ORANGE if variant in OURS else BLUE
            _bar(rates, place, [row["rps"] for row in own], colour, 0.62)
            _bar(times, place - 0.18, [row["mean_ms"] for row in own], colour, 0.3)
            _bar(times, place + 0.18, [row["p99_ms"] for row in own], LIGHT, 0.3)
        rates.set_yticks(range(len(variants)), [titles[variant] for variant in variants])
        count = len({row["repetition"] for row in rows if row["distribution"] == distribution})
        many = f"{count} repetitions" if count > 1 else "one repetition"
        _name(rates, f"requests/s, {DISTRIBUTIONS[distribution]} ({many})", "x")
        _name(times, "mean (colour) and 99th percentile (grey), ms", "x")
    for panel in panels[-1]:
        panel.set_xlabel("each repetition a dot, the median a bar")
    panels[0][0].invert_yaxis()
    figure.tight_layout()
    return figure


def _bar(panel: Any, place: float, values: Sequence[float], colour: str, height: float) -> None:
    if values:
        panel.barh(place, statistics.median(values), height=height, color=colour, alpha=0.7)
        panel.plot(values, [place] * len(values), "o", color=DARK, markersize=2.6, alpha=0.75)


def _concurrency(rows: Sequence[Row], titles: dict[str, str]) -> Any:
    """Draws the requests at each pod: one panel for each entry point, one line for each pod, requests as colour."""
    from matplotlib import colormaps, pyplot
    from matplotlib.colors import BoundaryNorm

    first = rows[0]["distribution"]
    shown = [row for row in rows if row["distribution"] == first]
    variants = [variant for variant in titles if any(row["variant"] == variant for row in shown)]
    pods = [name for name in rows[0] if name.startswith("app-")]
    columns = min(3, len(variants))
    lines = -(-len(variants) // columns)
    figure, panels = pyplot.subplots(
        lines, columns, figsize=(4.2 * columns, 1.75 * lines + 0.8), squeeze=False, sharey=True, layout="constrained"
    )
    norm = BoundaryNorm([level - 0.5 for level in range(MOST_SHOWN + 2)], 256)
    for panel in panels.flat[len(variants) :]:
        panel.set_axis_off()
    for place, (panel, variant) in enumerate(zip(panels.flat, variants, strict=False)):
        own = _from_first_request([row for row in shown if row["variant"] == variant], pods)
        values = [[min(row[pod], MOST_SHOWN) for row in own] for pod in pods]
        extent = (0, own[-1]["second"] - own[0]["second"], len(pods) - 0.5, -0.5)
        drawn = panel.imshow(
            values, aspect="auto", extent=extent, cmap=colormaps["RdYlBu_r"], norm=norm, interpolation="nearest"
        )
        most = max(row[pod] for row in own for pod in pods)
        panel.set_title(f"{titles[variant]} (at most {most})", fontsize=9.5, loc="left", fontweight="bold")
        panel.set_yticks(range(len(pods)), pods)
        if place + columns >= len(variants):
            panel.set_xlabel("seconds")
    bar = figure.colorbar(drawn, ax=panels, ticks=range(MOST_SHOWN + 1), shrink=0.9, pad=0.01)
    bar.ax.set_yticklabels([*map(str, range(MOST_SHOWN)), f"{MOST_SHOWN}+"])
    bar.set_label("requests at a pod: served, or waiting to be")
    figure.suptitle(
        f"Requests at each pod of 4 workers, of the first repetition ({DISTRIBUTIONS[first]})",
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    return figure


def _from_first_request(samples: list[Row], pods: Sequence[str]) -> list[Row]:
    """Skips the samples before the client starts to send."""
    first = next((at for at, row in enumerate(samples) if any(row[pod] for pod in pods)), 0)
    return samples[first:]


def _learning(rows: Sequence[Row]) -> Any:
    """Draws the limit of each pod and the true limit, one panel for each number of workers and clients."""
    from matplotlib import pyplot

    workers = sorted({row["workers"] for row in rows})
    clients = sorted({row["clients"] for row in rows})
    pods = [name for name in rows[0] if name.startswith("limit.")]
    size = (max(9.0, 4.2 * len(clients)), 2.3 * len(workers) + 0.6)
    figure, panels = pyplot.subplots(len(workers), len(clients), figsize=size, squeeze=False, sharex=True)
    for line, count in zip(panels, workers, strict=True):
        for panel, crowd in zip(line, clients, strict=True):
            own = [
                row
                for row in rows
                if (row["workers"], row["clients"], row["arm"], row["repetition"]) == (count, crowd, "auto", 1)
            ]
            for pod, colour in zip(pods, PODS, strict=False):
                values = [math.nan if row[pod] is None else row[pod] for row in own]
                panel.plot([row["second"] for row in own], values, color=colour, linewidth=1, drawstyle="steps-post")
            panel.axhline(count, color=DARK, linewidth=1, linestyle="--")
            offered = crowd / (count * len(pods))
            _name(panel, f"{count} workers, {crowd} clients ({offered:.0%} of the workers)", "y")
            panel.set_ylim(bottom=0)
        line[0].set_ylabel("limit, requests")
    for panel in panels[-1]:
        panel.set_xlabel("seconds since the start")
    handles = [pyplot.Line2D([], [], color=DARK, linestyle="--"), pyplot.Line2D([], [], color=PODS[0])]
    labels = ("workers of a pod", "learned limit, a colour for each pod")
    figure.legend(handles, labels, loc="upper right", ncols=2, frameon=False)
    figure.suptitle("Limits while they are learned", x=0.01, ha="left", fontweight="bold")
    figure.tight_layout()
    return figure


def _errors(rows: Sequence[Row], titles: dict[str, str]) -> Any:
    from matplotlib import pyplot

    variants = [variant for variant in titles if any(row["variant"] == variant for row in rows)]
    figure, panel = pyplot.subplots(figsize=(9, 0.42 * len(variants) + 1.1))
    shares = {
        variant: [100 * error_count(row) / max(1, row["requests"]) for row in rows if row["variant"] == variant]
        for variant in variants
    }
    widest = max(max(values) for values in shares.values()) or 1
    for place, (variant, values) in enumerate(shares.items()):
        _bar(panel, place, values, ORANGE if variant in OURS else BLUE, 0.6)
        own = [row for row in rows if row["variant"] == variant]
        count = f"{sum(map(error_count, own)):,} of {sum(row['requests'] for row in own):,}"
        panel.text(max(values) + 0.015 * widest, place, count, va="center", fontsize=8, color=DARK)
    panel.set_yticks(range(len(variants)), [titles[variant] for variant in variants])
    panel.invert_yaxis()
    panel.set_xlim(0, 1.25 * widest)
    panel.set_xlabel("% of POSTs; each repetition a dot, the median a bar")
    _name(panel, "Answers 502 or 500: workers that close each connection after its answer", "x")
    figure.tight_layout()
    return figure


def _scaling(seconds: Sequence[Row], rows: Sequence[Row], titles: dict[str, str]) -> Any:
    """Draws pods and refusals of the first repetition, one column for each variant."""
    from matplotlib import pyplot

    variants = [variant for variant in titles if any(row["variant"] == variant for row in rows)]
    figure, panels = pyplot.subplots(
        2, len(variants), figsize=(max(6.0, 3.3 * len(variants)), 5.2), squeeze=False, sharex=True, sharey="row"
    )
    for column, variant in enumerate(variants):
        above, below = panels[0][column], panels[1][column]
        own = [row for row in seconds if (row["variant"], row["repetition"]) == (variant, 1)]
        summary = next(row for row in rows if (row["variant"], row["repetition"]) == (variant, 1))
        times = [row["second"] for row in own]
        above.step(times, [row["started"] for row in own], color=LIGHT, where="post", label="started")
        above.step(times, [row["ready"] for row in own], color=BLUE, where="post", label="ready")
        above.axhline(summary["clients"] / summary["workers"], color=DARK, linewidth=1, linestyle="--", label="needed")
        _name(above, titles[variant], "y")
        below.step(times, [row["answered"] for row in own], color=BLUE, where="mid", label="answered")
        below.step(times, [row["refused"] for row in own], color=RED, where="mid", label="refused (429)")
        _name(below, f"{summary['refused']:,} refused, the last after {summary['last_refusal_second']:.0f} s", "y")
        below.set_xlabel("seconds since the load began")
    # A few clients that retry at once cause more refusals than there are answers.
    below.set_yscale("symlog", linthresh=10)
    below.yaxis.set_major_formatter("{x:,.0f}")
    panels[0][0].set_ylabel("pods")
    panels[1][0].set_ylabel("requests/s (logarithmic from 10 on)")
    panels[0][0].legend(frameon=False, fontsize=8)
    panels[1][0].legend(frameon=False, fontsize=8)
    for panel in panels.flat:
        panel.set_ylim(bottom=0)
    figure.tight_layout()
    return figure


def _empty_picture(text: str) -> Any:
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(6, 1))
    panel.set_axis_off()
    panel.text(0, 0.5, text)
    return figure


def _name(panel: Any, title: str, axis: str) -> None:
    panel.set_title(title, fontsize=9.5, loc="left", fontweight="bold")
    panel.grid(axis=axis, alpha=0.25)
    panel.set_axisbelow(True)
