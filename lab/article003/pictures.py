"""Picture of a run: the throughputs of the article's four pictures as ratios, and ours beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.article003.figures import DIRECT, inverse, ratios
from lab.bench import Row
from lab.figure import Figure
from lab.results import read_rows

COLUMNS = 3
PANEL_INCHES = (4.6, 0.8, 0.3)
# kube-proxy's rules with the address on the pod's node: the data path that MetalLB has with the pod "directly" there.
BASE = "iptables-local"
# Gbit/s of the article's pictures, by its text: "4Gbps -> 600 Mbps", "~600Mbps to 3Gbps", "a gain of ~1Gbps".
ARTICLE = {
    "MetalLB (IPVS), pod's node": 4.0,
    "MetalLB (IPVS), other node": 0.6,
    "LoxiLB, pod's node": 5.0,
    "LoxiLB, other node": 3.0,
}
# Measures that are shown for user-mode Linux.
IN_UML = ("stream-1 CPU", "round-trip p10", "busy download")
ARTICLE_BASE = "MetalLB (IPVS), pod's node"


@dataclass(frozen=True)
class Panel:
    """Ratios of arms to a base."""

    title: str
    label: str
    bars: Mapping[str, Figure]
    is_article: bool = False


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Returns the panels of the measured cases."""
    article = {name: Figure.of([value / ARTICLE[ARTICLE_BASE]], "ratio") for name, value in ARTICLE.items()}
    per_cpu = {arm: inverse(ratio) for arm, ratio in ratios(rows, "stream-1 CPU", BASE).items()}
    found = [
        Panel("article 003: throughput", "/ MetalLB on the pod's node", article, is_article=True),
        Panel("here: GB for a second of CPU, packets of 1,450 B", f"/ {BASE}", per_cpu),
        _panel(rows, "nodes of 200 Mbit/s that also send: download", "busy download"),
        _panel(rows, "CPU for a GB, packets of 1,450 B, 1 stream", "stream-1 CPU"),
        _panel(rows, "CPU for a GB, packets of 1,450 B, 8 streams", "stream-8 CPU"),
        _panel(rows, "CPU for a GB, super-packets, 1 stream", "offload-1 CPU"),
        _panel(rows, "round trip, p10", "round-trip p10"),
        _panel(rows, "connection and exchange, p10, 1 Service", "connect-1 p10"),
        _panel(rows, "connection and exchange, p10, 10,000 Services", "connect-10000 p10"),
    ]
    found += [_panel(rows, f"user-mode Linux: {case}", f"uml {case}") for case in IN_UML]
    return [panel for panel in found if panel.bars]


def _panel(rows: Sequence[Row], title: str, case: str) -> Panel:
    return Panel(title, f"/ no balancer ({DIRECT})", ratios(rows, case, DIRECT))


def draw(folder: Path, title: str) -> Path:
    """Draws a panel for each measure, a bar for each arm: the median as length, quartiles as line."""
    import matplotlib

    matplotlib.use("svg")
    # The same data give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "lab"
    from matplotlib import pyplot

    found = panels(read_rows(folder / "raw.csv"))
    columns = min(COLUMNS, len(found))
    lines = -(-len(found) // columns)
    width, frame, bar = PANEL_INCHES
    height = frame + bar * max(len(panel.bars) for panel in found)
    chart, axes = pyplot.subplots(lines, columns, figsize=(width * columns, height * lines), squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    for axis, panel in zip(axes.flat, found, strict=False):
        _draw_panel(axis, panel)
    chart.suptitle(title)
    chart.tight_layout()
    path = folder / "plot.svg"
    chart.savefig(path, metadata={"Date": None})
    pyplot.close(chart)
    return path


def _draw_panel(axis, panel: Panel) -> None:
    for height, (name, figure) in enumerate(panel.bars.items()):
        spread = [[figure.value - figure.low], [figure.high - figure.value]]
        axis.barh(height, figure.value, color=_colour(name), alpha=0.55, height=0.7)
        axis.errorbar(figure.value, height, xerr=spread, color="black", linewidth=1.2, capsize=3)
        axis.text(0.02, height, f"{figure.value:.2f}", va="center", fontsize=8)
    axis.axvline(1.0, color="black", linewidth=0.8, linestyle="--" if not panel.is_article else ":")
    axis.set_yticks(range(len(panel.bars)), list(panel.bars))
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_xlabel(panel.label)
    axis.set_title(panel.title, fontsize=10)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)


def _colour(name: str) -> str:
    """Returns the colour of a balancer, whose arms share it."""
    known = ("hop", "iptables", "nftables", "sheave", "ipvs", "MetalLB", "LoxiLB")
    return f"C{next((number for number, word in enumerate(known) if name.startswith(word)), 7)}"
