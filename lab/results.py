"""Output of a run: environment.txt, summary.md and plot.svg beside raw.csv, and JSON for programs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab import costs
from lab.article004 import figures as loads
from lab.article004 import rows as loads_rows
from lab.bench import Bench, Row
from lab.claim import Claim
from lab.figure import Figure


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a CSV file with the types that were recorded."""
    with path.open(newline="") as lines:
        return parse_rows(lines)


def parse_rows(lines: Iterable[str]) -> list[Row]:
    """Parses the rows of CSV."""
    return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(lines)]


def write(bench: Bench, environment: dict[str, Any], figures: dict[str, Figure], claims: list[Claim]) -> None:
    """Writes the files for readers into the folder of the run."""
    (bench.folder / "environment.txt").write_text(environment_text(environment))
    (bench.folder / "summary.md").write_text(summary(bench, figures, claims))


def write_json(
    path: Path, bench: Bench, environment: dict[str, Any], figures: dict[str, Figure], claims: list[Claim]
) -> None:
    """Writes everything into one JSON file, for programs."""
    document = {
        "experiment": bench.experiment.name,
        "title": bench.experiment.title,
        "extent": bench.extent,
        "claims": [claim.to_json() for claim in claims],
        "notes": bench.notes,
        "environment": environment,
        "figures": {name: asdict(figure) for name, figure in figures.items()},
        "raw": bench.rows,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def summary(bench: Bench, figures: dict[str, Figure], claims: list[Claim]) -> str:
    """Returns claims and figures as Markdown."""
    lines = [f"# {bench.experiment.name}: {bench.experiment.title}", ""]
    lines += [f"> {note}" for note in bench.notes] + ([""] if bench.notes else [])
    lines += ["| claim | value | bound | holds |", "| --- | --- | --- | --- |"]
    for claim in claims:
        value = "not measured" if claim.value is None else f"{claim.value:.3g}"
        lines.append(f"| {claim.text} | {value} | {claim.bound} | {'yes' if claim.holds else '**no**'} |")
    if costs.has_format(bench.rows):
        lines += ["", *costs.table(costs.read(bench.rows))]
    if bench.rows and bench.rows[0].keys() == loads_rows.EMPTY.keys():
        lines += ["", *loads.table(bench.rows)]
    lines += ["", "| figure | median (quartiles) | unit | n |", "| --- | --- | --- | --- |"]
    lines += [f"| {name} | {figure} | {figure.unit} | {figure.count} |" for name, figure in figures.items()]
    return "\n".join(lines) + "\n"


def environment_text(environment: dict[str, Any]) -> str:
    """Returns one line for each fact."""
    flat: dict[str, Any] = {}
    for name, value in environment.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return "".join(f"{name}: {_format_value(value)}\n" for name, value in flat.items())


def _value(text: str) -> Any:
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _format_value(value: Any) -> str:
    return " ".join(f"{item:.2f}" for item in value) if isinstance(value, list) else str(value)
