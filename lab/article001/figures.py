"""Figures by variant; `worst` and `all` are over every repetition."""

from __future__ import annotations

from collections.abc import Sequence

from lab.bench import Row
from lab.figure import Figure, paired_ratio

UNITS = {"rps": "requests per second", "mean_ms": "ms", "p99_ms": "ms", "busy_share": "share of workers"}
SCALING_UNITS = {
    "refused": "requests",
    "last_refusal_second": "s",
    "syncs": "syncs",
    "pods_steady": "pods",
    "pods_most": "pods",
    "pod_seconds": "s",
    "node_seconds": "s",
    "failed": "requests",
    "p99_ms": "ms",
}
BEST_PEER = "haproxy-maxconn"
OURS = ("sheave-cap", "sheave-auto")


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns the figures of the variants that have rows."""
    found: dict[str, Figure] = {}
    for kind, of_kind in (
        ("throughput", _throughput_figures),
        ("learning", _learning_figures),
        ("errors", _error_figures),
        ("scaling", _scaling_figures),
    ):
        found |= of_kind([row for row in rows if row["kind"] == kind])
    ours = [row for row in rows if row["variant"].startswith(("sheave", "learn", "502-sheave", "scale", "cluster"))]
    if ours:
        found["sheave.502s.all"] = Figure.of([sum(map(error_count, ours))], "requests")
        others = sum(row["broken"] + row["status_other"] for row in ours)
        found["sheave.otherwise.all"] = Figure.of([others], "requests")
    return found


def _throughput_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for distribution in dict.fromkeys(row["distribution"] for row in rows):
        of_distribution = [row for row in rows if row["distribution"] == distribution]
        for variant in dict.fromkeys(row["variant"] for row in of_distribution):
            own = [row for row in of_distribution if row["variant"] == variant]
            name = f"{distribution}.{variant}"
            found |= {f"{name}.{column}": Figure.of([row[column] for row in own], UNITS[column]) for column in UNITS}
            found[f"{name}.502s"] = Figure.of([_share_of_502s(row) for row in own], "% of requests")
            found[f"{name}.most_at_a_pod"] = Figure.of([row["most_at_a_pod"] for row in own], "requests")
        found |= _paired(of_distribution, distribution)
    return found


def _paired(rows: Sequence[Row], distribution: str) -> dict[str, Figure]:
    """Returns ratios to the best peer, and of the article's entry points to ours."""
    found: dict[str, Figure] = {}
    present = {row["variant"] for row in rows}
    for variant, other in [(variant, BEST_PEER) for variant in OURS] + [("sheave-auto", "sheave-cap")]:
        if {variant, other} <= present:
            for column in ("rps", "mean_ms", "p99_ms"):
                ratio = paired_ratio(_by_repetition(rows, variant, column), _by_repetition(rows, other, column))
                found[f"{distribution}.{variant}.{column} / {other}.{column}"] = ratio
    ways = sorted(variant for variant in present if variant.startswith(("clusterip", "nodeport")))
    for other in (BEST_PEER, "sheave-cap"):
        if ways and other in present:
            theirs = _by_repetition(rows, other, "rps")
            ratios = [paired_ratio(_by_repetition(rows, way, "rps"), theirs) for way in ways]
            found[f"{distribution}.rules.rps / {other}.rps.highest"] = max(ratios, key=lambda ratio: ratio.value)
    return found


def _learning_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns figures by workers and clients. A limit is visible only if the clients exceed the workers."""
    found: dict[str, Figure] = {}
    errors, ratios, tails = [], [], []
    for workers, clients in dict.fromkeys((row["workers"], row["clients"]) for row in rows):
        own = [row for row in rows if (row["workers"], row["clients"]) == (workers, clients)]
        name = f"learning.{workers} workers.{clients} clients"
        auto, fixed = ([row for row in own if row["arm"] == arm] for arm in ("auto", "fixed"))
        ratio = paired_ratio(*({row["repetition"]: row["rps"] for row in arm} for arm in (auto, fixed)))
        tail = paired_ratio(*({row["repetition"]: row["p99_ms"] for row in arm} for arm in (auto, fixed)))
        found |= {f"{name}.rps auto / fixed": ratio, f"{name}.p99_ms auto / fixed": tail}
        ratios.append(ratio.value)
        tails.append(tail.value)
        found[f"{name}.limit_error"] = Figure.of([row["limit_error"] for row in auto], "requests")
        if clients >= workers * len(str(auto[0]["limits"]).split()):
            errors += [row["limit_error"] for row in auto]
    if ratios:
        found["learning.rps auto / fixed.lowest"] = Figure.of([min(ratios)], "ratio")
        found["learning.p99_ms auto / fixed.highest"] = Figure.of([max(tails)], "ratio")
    if errors:
        found["learning.limit_error.worst"] = Figure.of([max(errors)], "requests")
    return found


def _error_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        found[f"{variant}.502s"] = Figure.of([_share_of_502s(row) for row in own], "% of requests")
        found[f"{variant}.502s.all"] = Figure.of([sum(map(error_count, own))], "requests")
        found[f"{variant}.rps"] = Figure.of([row["rps"] for row in own], "requests per second")
    pooling = [found[f"{variant}.502s.all"].value for variant in POOLING if f"{variant}.502s.all" in found]
    if pooling:
        found["pooling.502s.fewest"] = Figure.of([min(pooling)], "requests")
    return found


# Proxies that pool idle connections and detect a closed one only when they send a request.
POOLING = ("502-traefik", "502-caddy", "502-nginx")


def _scaling_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        for column, unit in SCALING_UNITS.items():
            # Only some runs have nodes.
            if all(row.get(column) is not None for row in own):
                found[f"{variant}.{column}"] = Figure.of([row[column] for row in own], unit)
        needed = own[0]["clients"] / own[0]["workers"]
        excess = [row["pods_steady"] / needed - 1 for row in own]
        found[f"{variant}.excess.worst"] = Figure.of([max(excess)], "of the pods that are needed")
    for patience in ("", "-impatient"):
        ours, theirs = f"scale-demand{patience}", f"scale-refusals{patience}"
        if {ours, theirs} <= {row["variant"] for row in rows}:
            by_ours, by_theirs = (_by_repetition(rows, variant, "syncs") for variant in (ours, theirs))
            more = [by_ours[number] - by_theirs[number] for number in by_ours.keys() & by_theirs.keys()]
            found[f"{ours}.syncs - {theirs}.syncs.worst"] = Figure.of([max(more)], "syncs")
            pairs = (_by_repetition(rows, variant, "refused") for variant in (ours, theirs))
            found[f"{ours}.refused / {theirs}.refused"] = paired_ratio(*pairs)
    return found | _in_cluster_figures(rows)


def _in_cluster_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns ratios of the test cluster's scalers. The lower ratio is above 1 if a scaler is worse than the article's
    script in refusals and in pod-seconds at once.
    """
    found: dict[str, Figure] = {}
    against_script = [(one, SCRIPT) for one in HPAS]
    for one, other in (*against_script, ("cluster-demand", "cluster-cpu")):
        if not {one, other} <= {row["variant"] for row in rows}:
            continue
        pairs = {
            column: (_by_repetition(rows, one, column), _by_repetition(rows, other, column))
            for column in ("refused", "pod_seconds", "node_seconds")
        }
        for column, (ours, theirs) in pairs.items():
            found[f"{one}.{column} / {other}.{column}"] = paired_ratio(ours, theirs)
        compared = [pairs["refused"], pairs["pod_seconds"]]
        lower = [min(ours[n] / theirs[n] for ours, theirs in compared) for n in pairs["refused"][0]]
        found[f"{one}.lower ratio to {other}.worst"] = Figure.of([max(lower)], "ratio")
    return found


# The article's script in the test cluster, and the autoscalers that are compared with it.
SCRIPT = "cluster-refusals"
HPAS = ("cluster-cpu", "cluster-demand", "cluster-keda", "cluster-demand-queue")


def _by_repetition(rows: Sequence[Row], variant: str, column: str) -> dict[int, float]:
    return {row["repetition"]: row[column] for row in rows if row["variant"] == variant}


def error_count(row: Row) -> int:
    """Returns the number of proxy errors: 502, and 500 where Traefik answers it instead."""
    return row["status_502"] + row["status_500"]


def _share_of_502s(row: Row) -> float:
    return 100 * error_count(row) / max(1, row["requests"])
