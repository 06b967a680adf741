"""Variants of experiment.toml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lab.testbed.link import LinkConditions, LinkDirection

DESCRIPTION_KEYS = ("title", "article")


@dataclass(frozen=True)
class Variant:
    """Link conditions, edges, sites and protocols of one variant."""

    id: str
    # loads: pages by each protocol. fallback: pages without UDP.
    kind: Literal["loads", "fallback"]
    rtt_ms: float
    # Congestion control of TCP and of QUIC.
    congestion: Literal["cubic", "bbr"]
    edges: tuple[str, ...]
    sites: tuple[str, ...]
    protocols: tuple[str, ...] = ()
    # Share of lost packets in each direction.
    loss: float = 0.0
    # Factor of the usual number of samples, for loads with a large spread.
    samples_for_one: int = 1
    # Number of concurrent samples, each over a separate link, for pages that wait for packets rather than for CPU.
    samples_at_once: int = 1

    def conditions(self, mbit: float, queue_kib: int) -> LinkConditions:
        """Returns symmetric link conditions."""
        direction = LinkDirection(self.rtt_ms / 2, mbit, queue_kib, self.loss)
        return LinkConditions(direction, direction)

    def samples(self, usual: int) -> int:
        return usual * self.samples_for_one


def read(settings: Sequence[dict[str, Any]], wanted: Sequence[str]) -> list[Variant]:
    """Returns the wanted variants in the order of the file."""
    return [_variant(one) for one in settings if one["id"] in wanted]


def _variant(one: dict[str, Any]) -> Variant:
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in one.items()}
    return Variant(**{name: value for name, value in plain.items() if name not in DESCRIPTION_KEYS})
