"""Pictures of article 004: box plots from raw.csv."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.article004.browser import PROTOCOLS
from lab.article004.figures import NEW, OURS, RETURNING, WITHOUT
from lab.article004.rows import FIRST, NEXT
from lab.article004.sites import SITES
from lab.bench import Row
from lab.results import read_rows
from lab.timeline import configure_matplotlib, save

COLOURS = {
    "h1-tls12": "#9a9a9a", "h1-tls13": "#5f5f5f", "h2-tls12": "#8fbcd9", "h2-tls13": "#31688e", "h3": "#f08a24",
    WITHOUT: "#31688e", NEW: "#f3b97c", RETURNING: "#f08a24",
}  # fmt: skip
VISITORS = {WITHOUT: "H2 alone", NEW: "told of H3 now", RETURNING: "knew of H3"}
DARK, RED = "#333333", "#c0392b"
# The article's first graphs and its zoom on the high latency, then conditions that it did not try.
EDGES, LOSSES, BLOCKED = "edges.svg", "loss.svg", "blocked.svg"
PICTURES = (EDGES, LOSSES, BLOCKED)
BOX_WIDTH = 0.8


def draw(folder: Path, titles: dict[str, str]) -> Path:
    """Draws the pictures beside their data; returns the article's picture (near and far, every site), if it exists."""
    configure_matplotlib()
    rows = read_rows(folder / "raw.csv")
    loads = [row for row in rows if not row["page"]]
    calm = [row for row in loads if not row["variant"].startswith("loss")]
    lossy = [row for row in loads if row["variant"].startswith("loss")]
    far = [row for row in calm if row["variant"] == "far"]
    pages = [row for row in rows if row["page"]]
    if far:
        save(_grid(far, titles, lambda row: row["edge"], {}), folder / EDGES)
    if lossy:
        save(_grid(lossy, titles, lambda row: f"{row['edge']}, {_controller(titles, row)}", {}), folder / LOSSES)
    if not loads:
        return save(_pages(pages, titles), folder / "plot.svg")
    if pages:
        save(_pages(pages, titles), folder / BLOCKED)
    ours = [row for row in calm if row["edge"] == OURS]
    return save(_grid(ours or calm or loads, titles, lambda row: row["variant"], titles), folder / "plot.svg")


def _controller(titles: dict[str, str], row: Row) -> str:
    return titles[row["variant"]].rpartition(", ")[2]


def _grid(rows: Sequence[Row], titles: dict[str, str], group: Callable[[Row], str], names: dict[str, str]) -> Any:
    """Draws one panel for each site, one group of boxes for each value of `group`, one box for each protocol."""
    from matplotlib import pyplot

    sites = [site for site in SITES if any(row["site"] == site for row in rows)]
    figure, panels = pyplot.subplots(1, len(sites), figsize=(2.4 + 4.2 * len(sites), 4.6), squeeze=False)
    groups = sorted(
        {group(row) for row in rows}, key=lambda name: (list(titles).index(name) if name in titles else 0, name)
    )
    for panel, site in zip(panels[0], sites, strict=True):
        own = [row for row in rows if row["site"] == site]
        forward = [name for name in groups if any(group(row) == name for row in own)]
        boxes = [
            [(by, [row for row in own if group(row) == name and row["protocol"] == by]) for by in PROTOCOLS]
            for name in forward
        ]
        _boxes(panel, boxes, [names.get(name, name) for name in forward])
        panel.set_title(f"{site}: {SITES[site].round_trips} round trips", fontsize=9.5, loc="left", fontweight="bold")
    seen = [by for by in PROTOCOLS if any(row["protocol"] == by for row in rows)]
    _legend(figure, {PROTOCOLS[by].title: COLOURS[by] for by in seen})
    return figure


def _pages(rows: Sequence[Row], titles: dict[str, str]) -> Any:
    """Draws a visitor's first and next page without UDP."""
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(7, 4.2))
    boxes = [
        [(by, [row for row in rows if (row["page"], row["protocol"]) == (page, by)]) for by in VISITORS]
        for page in (FIRST, NEXT)
    ]
    _boxes(panel, boxes, ["first page", "next page"])
    panel.set_title(titles[rows[0]["variant"]], fontsize=9.5, loc="left", fontweight="bold")
    _legend(figure, {title: COLOURS[by] for by, title in VISITORS.items()})
    return figure


def _boxes(panel: Any, groups: Sequence[Sequence[tuple[str, list[Row]]]], names: Sequence[str]) -> None:
    """Draws medians, quartiles, and whiskers of 1.5 interquartile ranges; a load is a dot, a failed load a cross."""
    position, centres = 0.0, []
    for boxes in groups:
        filled = [(by, rows) for by, rows in boxes if rows]
        for offset, (by, rows) in enumerate(filled):
            at = position + offset
            drawn = panel.boxplot(
                [[row["ms"] / 1000 for row in rows]], positions=[at], widths=BOX_WIDTH, patch_artist=True,
                medianprops={"color": DARK}, showfliers=False,
            )  # fmt: skip
            drawn["boxes"][0].set(facecolor=COLOURS[by], linewidth=0.7, alpha=0.8)
            for row in rows:
                mark, colour = ("x", RED) if row["failure"] else (".", COLOURS[by])
                panel.plot(at, row["ms"] / 1000, mark, color=colour, markersize=4)
        centres.append(position + (len(filled) - 1) / 2)
        position += len(filled) + 1
    panel.set_xticks(centres, names, fontsize=8)
    panel.set_ylim(bottom=0)
    panel.set_ylabel("s until all round trips are done")
    panel.grid(axis="y", alpha=0.25)
    panel.set_axisbelow(True)


def _legend(figure: Any, colours: dict[str, str]) -> None:
    from matplotlib import pyplot

    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.legend(handles, list(colours), loc="lower center", ncols=len(colours), frameon=False)
