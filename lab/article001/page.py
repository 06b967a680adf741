"""Article 001 on the report page: tables with the article's figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lab.figure import Figure

INTRODUCTION = """<h1>Limits, queues and 502s</h1>
<p>Six pods of four single-threaded uWSGI workers, requests that take 340 ms on average, and <code>ab -k -c 24</code>,
which posts a listing: the work of the article about HAProxy, Traefik and uWSGI in Kubernetes, on two nodes of the same
testbed. Every way has the same service times in the same order.</p>
<blockquote>The load balancer is blindly doing round-robin without taking in to account how many connections it has
already opened to the backend. This causes the request queue to fill up on one server while another server might
actually be able to process that request.</blockquote>"""
THROUGHPUT = (
    ("requests/s", "rps", ".1f"),
    ("mean, ms", "mean_ms", ".0f"),
    ("99th percentile, ms", "p99_ms", ".0f"),
    ("workers busy", "busy_share", ".1%"),
    ("502 or 500, %", "502s", ".2f"),
    ("most requests at a pod", "most_at_a_pod", ".0f"),
)
ERRORS = (("502 or 500, % of POSTs", "502s", ".2f"), ("requests/s", "rps", ".0f"))
SCALING = (
    ("refused", "refused", ",.0f"),
    ("last 429 after, s", "last_refusal_second", ".0f"),
    ("syncs until then", "syncs", ".0f"),
    ("pods at the end", "pods_steady", ".1f"),
    ("pods at most", "pods_most", ".0f"),
    ("pod-seconds", "pod_seconds", ".0f"),
)
Variants = Sequence[Mapping[str, Any]]


def tables(variants: Variants, figures: Mapping[str, Figure]) -> str:
    """Returns the tables of the measured variants; a quick run measures some of them."""
    throughput = [_name_and_titles(variant, "exponential.", figures, "rps") for variant in variants]
    errors = [_name_and_titles(variant, "", figures, "502s") for variant in variants]
    scaling = [_name_and_titles(variant, "", figures, "refused") for variant in variants]
    parts = ((throughput, THROUGHPUT), (errors, ERRORS), (scaling, SCALING))
    return "".join(_table(entries, columns, figures) for entries, columns in parts)


def _name_and_titles(
    variant: Mapping[str, Any], prefix: str, figures: Mapping[str, Figure], column: str
) -> tuple[str, ...]:
    name = f"{prefix}{variant['id']}"
    return (name, variant["title"], variant["article"]) if f"{name}.{column}" in figures else ()


def _table(
    entries: Sequence[tuple[str, ...]], columns: Sequence[tuple[str, str, str]], figures: Mapping[str, Figure]
) -> str:
    present = [entry for entry in entries if entry]
    if not present:
        return ""
    head = "".join(f"<th>{escape(title)}</th>" for title, _, _ in columns)
    lines = [f"<table><tr><th></th><th>article</th>{head}</tr>"]
    for name, title, article in present:
        cells = "".join(f"<td>{_cell(figures[f'{name}.{column}'], form)}</td>" for _, column, form in columns)
        lines.append(f"<tr><th>{escape(title)}</th><td>{escape(article)}</td>{cells}</tr>")
    return "\n".join([*lines, "</table><p><small>Median, and quartiles of the repetitions.</small></p>"])


def _cell(figure: Figure, form: str) -> str:
    spread = f" <small>{figure.low:{form}}–{figure.high:{form}}</small>" if figure.count > 1 else ""
    return f"{figure.value:{form}}{spread}"
