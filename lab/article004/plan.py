"""Order of a run: sample by sample, so that compared loads run close together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import product

from lab.article004 import rows, variants
from lab.article004.figures import NEW, RETURNING, WITHOUT
from lab.article004.sites import SITES, Site
from lab.article004.variants import Variant
from lab.bench import Bench


@dataclass(frozen=True)
class PlannedLoad:
    """One load of a site from an edge, or one visit without UDP."""

    variant: Variant
    edge: str
    site: Site
    # Name of a protocol or of a visitor.
    by: str
    sample: int

    @property
    def key(self) -> rows.Key:
        return (self.variant.id, self.edge, self.site.id, self.by, self.sample)

    def __str__(self) -> str:
        return f"sample {self.sample}, {self.variant.id}: {self.site.id} by {self.by} from {self.edge}"


@dataclass(frozen=True)
class SampleRound:
    """One sample of one variant."""

    variant: Variant
    # Seed of the link's packet loss.
    seed: int
    planned: Sequence[PlannedLoad]

    def without(self, known: Set[rows.Key]) -> SampleRound:
        """Returns the round without completed loads."""
        return replace(self, planned=[planned_load for planned_load in self.planned if planned_load.key not in known])


def rounds(bench: Bench) -> Iterator[Sequence[SampleRound]]:
    """Yields concurrent rounds. The same seed gives the same rounds, so an interrupted run can resume."""
    settings = bench.settings
    wanted = bench.only or settings.get(f"{bench.extent}_variants") or [each["id"] for each in settings["variants"]]
    chosen = variants.read(settings["variants"], wanted)
    usual = bench.setting("samples")
    for sample in range(1, max(variant.samples(usual) for variant in chosen) + 1):
        for variant in chosen:
            samples, at_once = range(1, variant.samples(usual) + 1), variant.samples_at_once
            if sample in samples[::at_once]:
                yield [_round(bench, variant, each) for each in samples[sample - 1 :][:at_once]]


def _round(bench: Bench, variant: Variant, sample: int) -> SampleRound:
    chance = random.Random(f"{bench.settings['seed']} {sample} {variant.id}")
    planned = [PlannedLoad(variant, *which, sample) for which in _combinations(bench, variant)]
    return SampleRound(variant, chance.getrandbits(63), chance.sample(planned, len(planned)))


def _combinations(bench: Bench, variant: Variant) -> Iterator[tuple[str, Site, str]]:
    edges = bench.settings.get(f"{bench.extent}_edges", variant.edges)
    sites = bench.settings.get(f"{bench.extent}_sites", variant.sites)
    return product(
        [edge for edge in variant.edges if edge in edges],
        [SITES[site] for site in variant.sites if site in sites],
        variant.protocols or (RETURNING, NEW, WITHOUT),
    )
