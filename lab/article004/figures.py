"""Figures of loads: medians, and ratios of loads of the same repetition."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from lab.article004.browser import PROTOCOLS
from lab.article004.rows import FIRST, NEXT
from lab.article004.sites import SITES
from lab.bench import Row
from lab.figure import Figure, paired_ratio

OURS = "sheave"
# On the host with TLS 1.3, so that only HTTP differs.
H1, H2, H3 = "h1-tls13", "h2-tls13", "h3"
RATIOS = {"h2 / h1": (H2, H1), "h3 / h1": (H3, H1), "h3 / h2": (H3, H2)}
# Sample counts at which the article drew conclusions: figures compare their medians with those of all samples.
SAMPLE_COUNTS = (10, 25)
# Visits without UDP: a visitor that learned of HTTP/3 before, one that learns of it now, and one that never uses it.
RETURNING, NEW, WITHOUT = "returning", "new", "without"

Samples = dict[int, float]
Cells = dict[tuple[str, str, str, str], Samples]


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns the figures of the variants that have rows; `worst` is the largest over the omitted dimensions."""
    found: dict[str, Figure] = {}
    for variant in _distinct(rows, "variant"):
        own = [row for row in rows if row["variant"] == variant]
        failures = sum(row["failure"] is not None for row in own)
        found[f"{variant}.failures"] = Figure.of([failures], "loads")
        if any(row["page"] for row in own):
            found |= _fallback_figures(variant, own)
        else:
            found |= _load_figures(variant, own)
    return found


def cells(rows: Iterable[Row]) -> Cells:
    """Returns milliseconds by sample for each edge, site, protocol and page."""
    found: Cells = {}
    for row in rows:
        key = (row["edge"], row["site"], row["protocol"], row["page"] or "")
        found.setdefault(key, {})[row["sample"]] = row["ms"]
    return dict(sorted(found.items()))


def _load_figures(variant: str, rows: list[Row]) -> dict[str, Figure]:
    loads = cells(rows)
    found = {
        f"{variant}.{edge}.{site}.{protocol}": Figure.of(list(samples.values()), "ms")
        for (edge, site, protocol, _), samples in loads.items()
    }
    for edge in _distinct(rows, "edge"):
        found |= _protocol_ratios(f"{variant}.{edge}", edge, loads)
    found |= _edge_ratios(variant, loads)
    return found | _convergence(variant, loads)


def _protocol_ratios(prefix: str, edge: str, loads: Cells) -> dict[str, Figure]:
    found = {}
    for name, (ours, theirs) in RATIOS.items():
        ratios = {
            site: paired_ratio(samples, loads[edge, site, theirs, ""])
            for (of_edge, site, protocol, _), samples in loads.items()
            if (of_edge, protocol) == (edge, ours) and (edge, site, theirs, "") in loads
        }
        found |= {f"{prefix}.{site}.{name}": ratio for site, ratio in ratios.items()}
        if ratios:
            found[f"{prefix}.{name}.worst"] = _worst(ratios.values())
    return found


def _edge_ratios(variant: str, loads: Cells) -> dict[str, Figure]:
    """Returns ratios of ours to the peer with the lowest median of the same page by the same protocol."""
    found = {}
    for (edge, site, protocol, _), samples in loads.items():
        peers = [
            theirs
            for (peer, of_site, by, _), theirs in loads.items()
            if peer != OURS and (of_site, by) == (site, protocol)
        ]
        if edge == OURS and peers:
            best = min(peers, key=lambda theirs: statistics.median(theirs.values()))
            found[f"{variant}.{OURS} / best peer.{site}.{protocol}"] = paired_ratio(samples, best)
    if found:
        found[f"{variant}.{OURS} / best peer.worst"] = _worst(list(found.values()))
    return found


def _convergence(variant: str, loads: Cells) -> dict[str, Figure]:
    """Returns how far medians after `SAMPLE_COUNTS` samples are from the final ones, if there are more samples."""
    found = {}
    for count in SAMPLE_COUNTS:
        distances = [
            abs(statistics.median(list(samples.values())[:count]) / statistics.median(samples.values()) - 1)
            for samples in loads.values()
            if len(samples) > count
        ]
        if distances:
            found[f"{variant}.after {count} samples"] = Figure.of(distances, "of the median after all")
    return found


def _fallback_figures(variant: str, rows: list[Row]) -> dict[str, Figure]:
    loads = cells(rows)
    found = {
        f"{variant}.{edge}.{site}.{visitor}.{page}": Figure.of(list(samples.values()), "ms")
        for (edge, site, visitor, page), samples in loads.items()
    }
    for (edge, site, visitor, page), samples in loads.items():
        if visitor != WITHOUT and (plain := loads.get((edge, site, WITHOUT, page))):
            added = [samples[sample] - plain[sample] for sample in sorted(samples.keys() & plain.keys())]
            found[f"{variant}.{edge}.{site}.{visitor}.{page}.added"] = Figure.of(added, "ms")
    for visitor in (RETURNING, NEW):
        for page in (FIRST, NEXT):
            added = [figure for name, figure in found.items() if name.endswith(f".{visitor}.{page}.added")]
            if added:
                found[f"{variant}.{visitor}.{page}.added.worst"] = _worst(added)
    return found


def _worst(found: Iterable[Figure]) -> Figure:
    return max(found, key=lambda figure: figure.value)


def _distinct(rows: Iterable[Row], column: str) -> list[str]:
    return list(dict.fromkeys(row[column] for row in rows))


def table(rows: Sequence[Row]) -> list[str]:
    """Returns medians in milliseconds as Markdown: one line for each site and edge, one column for each protocol."""
    lines = []
    for variant in _distinct(rows, "variant"):
        loads = cells(row for row in rows if row["variant"] == variant and not row["page"])
        places = sorted({(list(SITES).index(site), site, edge) for edge, site, _, _ in loads})
        lines += [
            f"| {variant} | {site} | {edge} | {' | '.join(_cell(loads, edge, site, each) for each in PROTOCOLS)} |"
            for _, site, edge in places
        ]
    if not lines:
        return []
    titles = " | ".join(protocol.title for protocol in PROTOCOLS.values())
    head = f"| ms until all is done: median (quartiles) | site | edge | {titles} |"
    return [head, "| --- " * (3 + len(PROTOCOLS)) + "|", *lines]


def _cell(loads: Cells, edge: str, site: str, protocol: str) -> str:
    samples = loads.get((edge, site, protocol, ""))
    return str(Figure.of(list(samples.values()), "ms")) if samples else ""
