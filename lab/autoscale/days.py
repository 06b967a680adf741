"""Days of a scaled deployment: parser and figures of the simulator's tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from lab.bench import Row
from lab.figure import Figure
from lab.results import parse_rows, read_rows

#: Parts of a run: one day by the minute, smaller days under many settings, and worlds under several signals.
DAY, TRADE, SIGNALS = "day", "trade", "signals"
MINUTES = "minutes.csv"
#: Time after a burst in which a scaler still settles: pods start, and an HPA keeps them for five minutes.
SETTLING_MINUTES = 10
OURS = "demand"


def is_complete(text: str) -> bool:
    """Returns true if the text is the simulator's complete output."""
    return text.startswith("minute,") and text.count("\n\n") == 1 and text.endswith("\n")


def has_worlds(path: Path) -> bool:
    """Returns true if the file has rows of worlds under several signals."""
    return any(row.get("part") == SIGNALS for row in read_rows(path))


def read(text: str) -> tuple[list[Row], Row]:
    """Parses the minutes of a day, and its totals."""
    minutes, day = (parse_rows(table.splitlines()) for table in text.split("\n\n"))
    return minutes, day[0]


def steady(minutes: Sequence[Row], target: float) -> Row:
    """Returns excess pods and refusals outside bursts and their settling time."""
    calm = [minute for minute, is_calm in zip(minutes, _calm(minutes), strict=True) if is_calm]
    needed = sum(minute["needed"] for minute in calm) / target
    return {
        "steady_minutes": len(calm),
        "steady_excess": round(sum(minute["pods"] for minute in calm) / needed - 1, 4) if needed else None,
        "steady_refused": sum(minute["refused"] for minute in calm),
    }


def _calm(minutes: Iterable[Row]) -> list[bool]:
    since_burst, calm = SETTLING_MINUTES, []
    for minute in minutes:
        since_burst = 0 if minute["burst"] else since_burst + 1
        calm.append(since_burst > SETTLING_MINUTES)
    return calm


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns each scaler's figures of the day, ratios of ours to the others', and comparisons at equal cost."""
    found: dict[str, Figure] = {}
    by_scaler = {row["scaler"]: row for row in rows if row["part"] == DAY}
    for scaler, row in by_scaler.items():
        for name, figure in _scaler_figures(row).items():
            found[f"{scaler}.{name}"] = figure
    for other in [scaler for scaler in by_scaler if scaler != OURS] if OURS in by_scaler else []:
        for name in ("pod_hours", "refused", "lost", "refusing_seconds", "wait_p99"):
            ours, theirs = found[f"{OURS}.{name}"].value, found[f"{other}.{name}"].value
            if theirs:
                found[f"{name}: {OURS} / {other}"] = Figure.of([ours / theirs], "ratio")
    found |= _trade_figures([row for row in rows if row["part"] == TRADE])
    return found | _signal_figures([row for row in rows if row["part"] == SIGNALS])


def _scaler_figures(row: Row) -> dict[str, Figure]:
    units = {
        "pod_hours": (row["pod_hours"], "pod-hours"),
        "paid": (row["pod_hours"] / row["needed_pod_hours"], "of the pod-hours that are busy"),
        "refused": (row["refused"], "answers"),
        "lost": (row["lost"], "clients"),
        "lost_share": (100 * row["lost"] / row["arrived"], "% of clients"),
        "refusing_seconds": (row["refusing_seconds"], "s"),
        "most_pods": (row["most_pods"], "pods"),
        "wait_p99": (row["wait_p99_ms"], "ms"),
        "steady_refused": (row["steady_refused"], "answers"),
    }
    if row["steady_excess"] is not None:
        units["steady_excess"] = (row["steady_excess"], "of the pods that the target asks for")
    return {name: Figure.of([number], unit) for name, (number, unit) in units.items()}


def _trade_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns ratios of refused requests at equal cost, ours to theirs: over another scaler's settings, and the worst
    one.

    Between two settings of ours the line of the picture counts. Costs below or above all of ours are not compared.
    """
    points = trade_points(rows)
    ours = sorted((point["pod_hours"], point["refused"]) for point in points.pop(OURS, {}).values())
    found = {}
    for scaler, settings in points.items():
        pairs = [(point["refused"], _between(ours, point["pod_hours"])) for point in settings.values()]
        ratios = [own / theirs for theirs, own in pairs if own is not None]
        if ratios:
            found[f"refused at the same cost: {OURS} / {scaler}"] = Figure.of(ratios, "ratio")
            found[f"refused at the same cost, worst: {OURS} / {scaler}"] = Figure.of([max(ratios)], "ratio")
    return found


def _signal_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns the figures of each signal in each world, over its days, and their ratios by day."""
    found: dict[str, Figure] = {}
    by_setting: dict[str, list[Row]] = {}
    for row in rows:
        by_setting.setdefault(row["setting"], []).append(_signal_row(row))
    for setting, own in by_setting.items():
        for name, unit in SIGNAL_UNITS.items():
            found[f"{setting}.{name}"] = Figure.of([row[name] for row in own], unit)
    for setting, own in by_setting.items():
        world, _, signal = setting.partition(".")
        for other, theirs in by_setting.items():
            if other.startswith(f"{world}.") and other != setting:
                for name in SIGNAL_UNITS:
                    pairs = zip(own, theirs, strict=True)
                    ratios = [ours[name] / other_row[name] for ours, other_row in pairs if other_row[name]]
                    if ratios:
                        found[f"{world}.{name}: {signal} / {other.partition('.')[2]}"] = Figure.of(ratios, "ratio")
    return found


SIGNAL_UNITS = {
    "pod_hours": "of the pod-hours that are busy",
    "node_hours": "of the node-hours that are busy",
    "refused": "% of clients",
    "lost": "% of clients",
    "wait_p99": "s",
}


def _signal_row(row: Row) -> Row:
    busy_nodes = row["needed_pod_hours"] / row["node_pods"] if row["node_pods"] else None
    return {
        "pod_hours": row["pod_hours"] / row["needed_pod_hours"],
        "node_hours": row["node_hours"] / busy_nodes if busy_nodes else 0.0,
        "refused": 100 * row["refused"] / row["arrived"],
        "lost": 100 * row["lost"] / row["arrived"],
        "wait_p99": row["wait_p99_ms"] / 1000,
    }


def signal_points(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Returns the mean of the days by world and signal."""
    days: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        world, _, signal = row["setting"].partition(".")
        days.setdefault(world, {}).setdefault(signal, []).append(_signal_row(row))
    return {
        world: {
            signal: {name: fmean(row[name] for row in own) for name in SIGNAL_UNITS} for signal, own in signals.items()
        }
        for world, signals in days.items()
    }


def _between(line: Sequence[tuple[float, float]], cost: float) -> float | None:
    """Interpolates the value at a cost, linearly over a logarithmic axis."""
    for (left, low), (right, high) in pairwise(line):
        if left <= cost <= right:
            share = (cost - left) / (right - left)
            return math.exp((1 - share) * math.log(low) + share * math.log(high))
    return None


def trade_points(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Returns the mean of the days by scaler and setting: shares of pod-hours, refused requests and lost clients."""
    days: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        days.setdefault(row["scaler"], {}).setdefault(row["setting"], []).append(row)
    return {scaler: {setting: _mean(own) for setting, own in settings.items()} for scaler, settings in days.items()}


def _mean(days: Sequence[Row]) -> Row:
    return {
        "pod_hours": fmean(day["pod_hours"] / day["needed_pod_hours"] for day in days),
        "refused": fmean(day["refused"] / day["arrived"] for day in days),
        "lost": fmean(day["lost"] / day["arrived"] for day in days),
    }
