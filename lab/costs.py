"""Costs by case and arm, which most experiments record: a table, and bars with their spread."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.figure import Figure

COLUMNS = 3
PANEL_INCHES = (4.2, 0.7, 0.32)


@dataclass
class Case:
    """Costs of one case by arm, one for each round."""

    unit: str
    arms: dict[str, list[float]] = field(default_factory=dict)

    def figures(self) -> dict[str, Figure]:
        return {arm: Figure.of(costs, self.unit) for arm, costs in self.arms.items()}


def has_format(rows: Sequence[Mapping[str, object]]) -> bool:
    """Returns true if the rows are costs."""
    return bool(rows) and all({"case", "arm", "cost", "unit"} <= row.keys() for row in rows)


def read(rows: Iterable[Mapping[str, object]]) -> dict[str, Case]:
    """Returns the cases; cases and arms are sorted by name, because rounds shuffle them."""
    cases: dict[str, Case] = {}
    for row in rows:
        case = cases.setdefault(str(row["case"]), Case(str(row["unit"])))
        case.arms.setdefault(str(row["arm"]), []).append(float(str(row["cost"])))
    return {name: Case(case.unit, dict(sorted(case.arms.items()))) for name, case in sorted(cases.items())}


def table(cases: Mapping[str, Case]) -> list[str]:
    """Returns lines of Markdown: one row for each case, one column for each arm; medians with quartiles.

    Arms of a single case have no column; they are among the figures.
    """
    taken_part = Counter(arm for case in cases.values() for arm in case.arms)
    arms = sorted(arm for arm, count in taken_part.items() if count > 1)
    lines = ["| case | unit | " + " | ".join(arms) + " |", "| --- | --- |" + " --- |" * len(arms)]
    for name, case in cases.items():
        if case.arms.keys().isdisjoint(arms):
            continue
        figures = case.figures()
        cells = [str(figures[arm]) if arm in figures else "" for arm in arms]
        lines.append(f"| {name} | {case.unit} | " + " | ".join(cells) + " |")
    return lines


def draw(folder: Path, title: str) -> Path:
    """Draws one panel for each case, one bar for each arm: median as length, quartiles as line, rounds as dots."""
    import matplotlib

    matplotlib.use("svg")
    # The same data give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "lab"
    from matplotlib import pyplot

    with (folder / "raw.csv").open(newline="") as lines:
        cases = read(csv.DictReader(lines))
    programs = sorted({_program(arm) for case in cases.values() for arm in case.arms})
    columns = min(COLUMNS, len(cases))
    rows = -(-len(cases) // columns)
    width, frame, bar = PANEL_INCHES
    height = frame + bar * max(len(case.arms) for case in cases.values())
    chart, panels = pyplot.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)
    for panel in panels.flat[len(cases) :]:
        panel.set_axis_off()
    for panel, (name, case) in zip(panels.flat, cases.items(), strict=False):
        _draw_case(panel, name, case, programs)
    chart.suptitle(title)
    chart.tight_layout()
    path = folder / "plot.svg"
    chart.savefig(path, metadata={"Date": None})
    pyplot.close(chart)
    return path


def _draw_case(panel, name: str, case: Case, programs: list[str]) -> None:
    for height, (arm, figure) in enumerate(case.figures().items()):
        costs = case.arms[arm]
        spread = [[figure.value - figure.low], [figure.high - figure.value]]
        panel.barh(height, figure.value, color=f"C{programs.index(_program(arm)) % 10}", alpha=0.55, height=0.7)
        panel.errorbar(figure.value, height, xerr=spread, color="black", linewidth=1.2, capsize=3)
        panel.plot(costs, [height] * len(costs), "o", color="black", alpha=0.25, markersize=3, markeredgewidth=0)
    panel.set_yticks(range(len(case.arms)), list(case.arms))
    panel.invert_yaxis()
    # The axis starts at zero, so that lengths are comparable.
    lowest, highest = min(map(min, case.arms.values())), max(map(max, case.arms.values()))
    panel.set_xlim(1.05 * min(lowest, 0), 1.05 * max(highest, 0) or 1)
    panel.set_xlabel(case.unit)
    panel.set_title(name, fontsize=10)
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)


def _program(arm: str) -> str:
    """Returns the program of an arm; arms of one program share a colour."""
    return arm.partition("-")[0]
