"""Claims: figures with bounds, written down before the run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from lab.figure import Figure


@dataclass(frozen=True)
class Expectation:
    """One `[[claim]]` table of an expect.toml."""

    id: str
    text: str
    figure: str
    at_most: float = math.inf
    at_least: float = -math.inf
    # True if a quick run, short and without repetitions, can check the claim.
    quick: bool = True
    # True if the claim is about a run in the test cluster, false if about any other run.
    cluster: bool = False

    def __post_init__(self) -> None:
        if math.isinf(self.at_most) == math.isinf(self.at_least):
            raise ValueError(f"claim {self.id}: give either at_most or at_least")

    @property
    def bound(self) -> str:
        return f"<= {self.at_most:g}" if math.isfinite(self.at_most) else f">= {self.at_least:g}"

    def check(self, figures: dict[str, Figure]) -> Claim:
        """Checks the claim; a missing figure refutes it."""
        figure = figures.get(self.figure)
        value = figure.value if figure else None
        holds = value is not None and self.at_least <= value <= self.at_most
        return Claim(self.id, self.text, value, self.bound, holds)


@dataclass(frozen=True)
class Claim:
    """Result of a claim."""

    id: str
    text: str
    value: float | None
    bound: str
    holds: bool

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:.3g}"
        verdict = "holds" if self.holds else "FALLS SHORT"
        return f"{verdict:11} {self.text}: {value} ({self.bound})"
