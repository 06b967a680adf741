"""Figures of a run: each measure by arm, and its ratio to no balancer in the same round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.bench import Row
from lab.figure import Figure, paired_ratio

# Arm that the others are compared with.
DIRECT = "direct"


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns all figures of the measured cases and arms."""
    found: dict[str, Figure] = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        by_arm = costs(rows, case)
        unit = next(row["unit"] for row in rows if row["case"] == case)
        for arm, by_round in by_arm.items():
            found[f"{case}.{arm}"] = Figure.of(list(by_round.values()), unit)
        found |= {f"{case}: {arm} / {DIRECT}": ratio for arm, ratio in ratios(rows, case, DIRECT).items()}
    return found


def ratios(rows: Sequence[Row], case: str, base: str) -> dict[str, Figure]:
    """Returns the ratio of each arm to the base in the same round, without rounds that lack one of them."""
    by_arm = costs(rows, case)
    theirs = by_arm.get(base, {})
    pairs = {arm: ours for arm, ours in by_arm.items() if arm != base and ours.keys() & theirs.keys()}
    return {arm: paired_ratio(ours, theirs) for arm, ours in pairs.items()}


def inverse(figure: Figure) -> Figure:
    """Returns the figure of what is twice as much if the cost is half."""
    return Figure(1 / figure.value, 1 / figure.high, 1 / figure.low, figure.count, figure.unit)


def costs(rows: Sequence[Row], case: str) -> Mapping[str, dict[int, float]]:
    """Returns the costs by arm and round."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["case"] == case:
            found.setdefault(row["arm"], {})[row["round"]] = row["cost"]
    return dict(sorted(found.items()))
