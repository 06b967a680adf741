"""Report page of a run, self-contained: claims, observations and pictures."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

from lab import experiment, plot, timeline
from lab.article001 import page
from lab.article001.pictures import PICTURES
from lab.article002.pictures import SERVERS
from lab.article004 import pictures as loads_pictures
from lab.claim import Claim
from lab.experiment import Experiment
from lab.figure import Figure
from lab.kubernetes.agents import ANNOTATION
from lab.paths import CACHE, MissingRequirement
from lab.results import read_rows

SUBJECT = "article-000"
LIMITS = "article-001"
GRPC = "article-002"
LOADS = "article-004"
LOADS_SOURCE = "»Benchmarking HTTP/3 Performance with Ambassador Edge Stack and Envoy Proxy«"
GRPC_SOURCE = "»Load balancing gRPC in K8s without service mesh«"
SOURCE = "»Fixing Kubernetes Load Balancing with HTTP/3«, April 10, 2026"
# The article's results in words, and the columns of the comparison.
COMPARED = ("clusterip", "haproxy", "nginx", "envoy", "sheave")
ROWS = (
    ("requests/s before", "rps_before", "about 250"),
    ("requests/s after", "rps_after", "no change"),
    ("after / before", "gain", "1"),
    ("median latency after, ms", "p50_after_ms", "no change"),
    ("95th percentile after, ms", "p95_after_ms", ""),
    ("new replica's share", "share", "0 %"),
    ("requests went elsewhere until its first, ms", "first_request_delay_ms", "none"),
    ("failed requests in a run", "failures", "0"),
)
STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.6em; } h2 { font-size: 1.2em; margin-top: 2.5em; }
table { border-collapse: collapse; margin: 1em 0; font-size: 0.9em; }
th, td { border-bottom: 1px solid #ddd; padding: 0.35em 0.8em; text-align: left; vertical-align: top; }
td small { color: #777; white-space: nowrap; }
svg { width: 100%; height: auto; } .no { color: #c0392b; font-weight: bold; }
blockquote { margin: 0.5em 0; padding-left: 1em; border-left: 3px solid #ccc; color: #555; }
pre { font-size: 0.8em; overflow-x: auto; background: #f6f6f6; padding: 1em; }
"""


def newest() -> Path:
    """Returns the folder of the newest run; raises an error with instructions if there is none."""
    if folder := _newest_of(SUBJECT, in_cluster=False):
        return folder
    raise MissingRequirement(f"no run of {SUBJECT} exists: run `make lab EXP={SUBJECT}`")


def is_in_cluster(found: Experiment, folder: Path) -> bool:
    """Returns true if the run was in the test cluster, as its first row says."""
    variants = found.settings.get("cluster", {}).get("variants", ())
    with (folder / "raw.csv").open(newline="") as lines:
        first = next(csv.DictReader(lines), {})
    return first.get("variant") in [variant["id"] for variant in variants]


def _newest_of(name: str, *, in_cluster: bool) -> Path | None:
    """Returns the newest of the committed and cached runs, of those in the test cluster or of the others."""
    found = experiment.find(name)
    folders = [path.parent for path in (*found.folder.glob("runs/*/raw.csv"), *CACHE.glob(f"lab/{name}/*/raw.csv"))]
    whole = [
        folder for folder in folders if (folder / "summary.md").is_file() and is_in_cluster(found, folder) == in_cluster
    ]
    return max(whole, key=lambda folder: (folder / "summary.md").stat().st_mtime, default=None)


def write(folder: Path) -> Path:
    """Redraws the pictures, and writes the page into the cache."""
    found = experiment.find(SUBJECT)
    pictures = CACHE / "lab" / "report"
    pictures.mkdir(parents=True, exist_ok=True)
    plot.draw(folder, found)
    timeline.draw_details(folder, found.titles, pictures)
    rows = read_rows(folder / "raw.csv")
    figures = found.module().figures(rows)
    path = CACHE / "lab" / "report.html"
    path.write_text(_page(found, folder, pictures, figures))
    return path


def _page(found: Experiment, folder: Path, pictures: Path, figures: dict[str, Figure]) -> str:
    variants = [variant for variant in found.settings["variants"] if f"{variant['id']}.rps_before" in figures]
    claims = [claim.check(figures) for claim in found.expectations if claim.figure in figures]
    sections = "".join(_section(variant, figures, pictures) for variant in variants)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{escape(found.title)}</title><style>{STYLE}</style>
<h1>A second replica behind users who keep their connections</h1>
<p>The application, the Locust users and the versions of {escape(SOURCE)}, on one machine: a client, a node and its pods
are network namespaces, pods have CPU quotas, and kube-proxy's iptables rules are in the node's namespace.</p>
<blockquote>Once a connection is established, routing no longer takes place. […] the new instance is simply not being
used.</blockquote>
{_comparison(figures)}
<h2>What is claimed, and whether it holds</h2>
{_claims(claims)}
<h2>All variants</h2>
{_svg(folder / "plot.svg")}
{_svg(folder / "rates.svg")}
{sections}
{_machine(folder)}
{_other_sections()}
</html>
"""


def _machine(folder: Path) -> str:
    return f"""<h2>The machine</h2>
{_notes(folder)}
<pre>{escape((folder / "environment.txt").read_text())}</pre>"""


def _limits(found: Experiment, folder: Path, figures: dict[str, Figure], claims: list[Claim]) -> str:
    return f"""{page.INTRODUCTION}
{page.tables(found.settings["variants"], figures)}
{_claims(claims)}
{_pictures(folder, PICTURES)}"""


def _grpc(_found: Experiment, folder: Path, _figures: dict[str, Figure], claims: list[Claim]) -> str:
    return f"""<h1>A gRPC client with one connection</h1>
<p>The servers and clients of {escape(GRPC_SOURCE)}, in Go, on the same testbed: a call takes 100 ms, and has a deadline
of 300 ms.</p>
<blockquote>gRPC uses a single TCP connection and multiplexes requests on top of that connection. This means that the
layer 4 load balancer provided by K8s doesn’t work well for gRPC.</blockquote>
{_claims(claims)}
{_pictures(folder, [SERVERS])}"""


def _loads(_found: Experiment, folder: Path, _figures: dict[str, Figure], claims: list[Claim]) -> str:
    return f"""<h1>What HTTP/3 is worth to a browser</h1>
<p>The sites of {escape(LOADS_SOURCE)}, loaded by Chromium over a line of 5 or 100 ms, with and without packets lost, by
the same congestion control over TCP and QUIC.</p>
<blockquote>There is definitely a big improvement going from HTTP/1.1 (H1) to either HTTP/2 (H2) or HTTP/3 (H3). Between H2
and H3, performance is close, but H2 seems to edge out H3 in most of the trials.</blockquote>
{_claims(claims)}
{_pictures(folder, loads_pictures.PICTURES)}"""


def _cluster(_found: Experiment, folder: Path, _figures: dict[str, Figure], claims: list[Claim]) -> str:
    return f"""<h1>The same in Kubernetes</h1>
<p>The same users and application in a cluster of three nodes, with the real kube-apiserver and kube-proxy: first the
Service as it is, then after `kubectl annotate service app {escape(ANNOTATION)}`.</p>
{_claims(claims)}
{_pictures(folder, ())}"""


def _cluster_grpc(_found: Experiment, folder: Path, _figures: dict[str, Figure], claims: list[Claim]) -> str:
    return f"""<h1>gRPC clients with one connection each, in Kubernetes</h1>
<p>The same client on each of three nodes, and a Deployment that `kubectl scale` brings from one server to three.</p>
{_claims(claims)}
{_pictures(folder, ())}"""


Render = Callable[[Experiment, Path, dict[str, Figure], list[Claim]], str]


def _other_sections() -> str:
    """Returns the section of the newest run of everything else, or instructions."""
    cluster = _other_section(SUBJECT, _cluster, in_cluster=True)
    others = [_other_section(name, render) for name, render in ((LIMITS, _limits), (GRPC, _grpc))]
    cluster_grpc = _other_section(GRPC, _cluster_grpc, in_cluster=True)
    return "\n".join([cluster, *others, cluster_grpc, _other_section(LOADS, _loads)])


def _other_section(name: str, render: Render, *, in_cluster: bool = False) -> str:
    folder = _newest_of(name, in_cluster=in_cluster)
    if folder is None:
        options = " ARGS=--cluster" if in_cluster else ""
        return f"<p><small>There is more once `make lab EXP={name}{options}` has run.</small></p>"
    found = experiment.find(name)
    figures, claims = _redraw(found, folder)
    return f"{render(found, folder, figures, claims)}\n{_machine(folder)}"


def _pictures(folder: Path, more: Iterable[str]) -> str:
    """Returns the overview and further pictures, if the run has them."""
    return "\n".join(_svg(path) for name in ("plot.svg", *more) if (path := folder / name).is_file())


def _redraw(found: Experiment, folder: Path) -> tuple[dict[str, Figure], list[Claim]]:
    """Redraws the pictures of a run; returns its figures and claims."""
    plot.draw(folder, found)
    figures = found.module().figures(read_rows(folder / "raw.csv"))
    return figures, [claim.check(figures) for claim in found.expectations if claim.figure in figures]


def _comparison(figures: dict[str, Figure]) -> str:
    """Returns the article's table beside all balancers: medians and quartiles."""
    shown = [variant for variant in COMPARED if f"{variant}.rps_after" in figures]
    names = {"clusterip": "ClusterIP", "haproxy": "HAProxy", "nginx": "nginx", "envoy": "Envoy", "sheave": "Sheave"}
    head = "".join(f"<th>{escape(names[variant])}</th>" for variant in shown)
    lines = [f"<table><tr><th></th><th>article</th>{head}</tr>"]
    for title, name, article in ROWS:
        cells = "".join(f"<td>{_cell(figures.get(f'{variant}.{name}'))}</td>" for variant in shown)
        lines.append(f"<tr><th>{escape(title)}</th><td>{escape(article)}</td>{cells}</tr>")
    return "\n".join([*lines, "</table><p><small>Median, and quartiles of the repetitions.</small></p>"])


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "none"
    if figure.unit == "share of requests":
        return f"{figure.value:.1%} <small>{figure.low:.1%}–{figure.high:.1%}</small>"
    digits = ".2f" if figure.unit == "ratio" else ".0f"
    return f"{figure.value:{digits}} <small>{figure.low:{digits}}–{figure.high:{digits}}</small>"


def _claims(claims: list[Claim]) -> str:
    lines = ["<table><tr><th>claim</th><th>value</th><th>bound</th><th>holds</th></tr>"]
    for claim in claims:
        verdict = "yes" if claim.holds else '<span class="no">no</span>'
        cells = (escape(claim.text), f"{claim.value:.3g}", escape(claim.bound), verdict)
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return "\n".join([*lines, "</table>"])


def _section(variant: dict[str, str], figures: dict[str, Figure], pictures: Path) -> str:
    seen = _variant_summary(variant["id"], figures)
    return f"""<h2>{escape(variant["title"])}</h2>
<p><b>The article:</b> {escape(variant["article"])}<br><b>Here:</b> {escape(seen)}</p>
{_svg(pictures / f"{variant['id']}.svg")}
"""


def _variant_summary(variant: str, figures: dict[str, Figure]) -> str:
    before, failures = figures[f"{variant}.rps_before"], figures[f"{variant}.failures"]
    latency = figures[f"{variant}.p50_before_ms"]
    text = f"{before.value:.0f} requests per second at a median of {latency.value:.0f} ms"
    if after := figures.get(f"{variant}.rps_after"):
        share, later = figures[f"{variant}.share"], figures[f"{variant}.p50_after_ms"]
        text += f" before, {after.value:.0f} at {later.value:.0f} ms after; the new replica got {share.value:.1%}"
    many = f"medians of {before.count} repetitions, of which the picture shows one"
    return f"{text}; {failures.value:.0f} failed ({many if before.count > 1 else 'one repetition'})."


def _notes(folder: Path) -> str:
    """Returns the notes of the run's summary."""
    notes = re.findall(r"^> (.*)$", (folder / "summary.md").read_text(), re.MULTILINE)
    return "".join(f"<p><b>{escape(note)}</b></p>" for note in notes)


def _svg(path: Path) -> str:
    """Returns the drawing without the prologue and metadata of a standalone file."""
    text = path.read_text()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
