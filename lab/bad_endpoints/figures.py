"""Figures of a run: one for each case and arm, and the comparisons that claims need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.bad_endpoints.rows import FAILED, MEASURES, P99
from lab.bad_endpoints.scenario import Scenario
from lab.bench import Bench, Row
from lab.figure import Figure, paired_ratio


@dataclass
class Costs:
    """Rows of one case and arm."""

    by_round: dict[int, float] = field(default_factory=dict)
    requests: int = 0
    errors: int = 0

    def add(self, row: Row) -> None:
        self.by_round[row["round"]] = row["cost"]
        self.requests += row["requests"]
        self.errors += row["errors"]

    def median(self, unit: str) -> Figure:
        return Figure.of(list(self.by_round.values()), unit)

    def failed_share(self) -> float:
        """Share of failed requests over all rounds; a median would hide failures in few rounds."""
        return 100 * self.errors / (self.errors + self.requests)


# Costs by case, then by arm.
Cases = dict[str, dict[str, Costs]]


def figures(bench: Bench, scenarios: Sequence[Scenario]) -> dict[str, Figure]:
    """Returns all figures of the measured scenarios."""
    cases: Cases = {}
    for row in bench.rows:
        cases.setdefault(row["case"], {}).setdefault(row["arm"], Costs()).add(row)
    found: dict[str, Figure] = {}
    for scenario in scenarios:
        if scenario.load == "open":
            found |= _open_load_figures(bench, scenario, cases)
        else:
            found |= _closed_load_figures(scenario, cases)
    return found


def _closed_load_figures(scenario: Scenario, cases: Cases) -> dict[str, Figure]:
    """Returns the median and the worst of the rounds; claims about every request need the worst."""
    found = {}
    for name in scenario.measures:
        measure, case = MEASURES[name], f"{scenario.id}: {name}"
        for arm in scenario.arms:
            costs = cases[case][arm]
            found[f"{case}.{arm}"] = costs.median(measure.unit)
            worst = measure.worst(list(costs.by_round.values()))
            found[f"{case}.{arm}.worst"] = Figure.of([worst], measure.unit)
    return found


def _open_load_figures(bench: Bench, scenario: Scenario, cases: Cases) -> dict[str, Figure]:
    failures, latencies = cases[f"{scenario.id}: failed"], cases[f"{scenario.id}: p99"]
    shares = {arm: failures[arm].failed_share() for arm in scenario.arms}
    medians = {arm: latencies[arm].median(P99) for arm in scenario.arms}
    found = {f"{scenario.id}: failed.{arm}": Figure.of([share], FAILED) for arm, share in shares.items()}
    found |= {f"{scenario.id}: p99.{arm}": median for arm, median in medians.items()}

    compared = bench.settings["compared"]
    ours, ours_by_default = compared["ours"], compared["ours_by_default"]
    against = [arm for arm in compared["against"] if arm in scenario.arms]
    if ours in scenario.arms and against:
        fewest = min(shares[arm] for arm in against)
        best = min(against, key=lambda arm: medians[arm].value)
        found[f"{scenario.id}: failed"] = Figure.of([shares[ours] - fewest], "% of requests")
        found[f"{scenario.id}: p99"] = paired_ratio(latencies[ours].by_round, latencies[best].by_round)
    if {ours, ours_by_default} <= set(scenario.arms):
        default, tuned = latencies[ours_by_default], latencies[ours]
        found[f"{scenario.id}: p99, default / tuned"] = paired_ratio(default.by_round, tuned.by_round)
    return found
