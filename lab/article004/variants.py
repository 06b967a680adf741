"""What is compared, as experiment.toml has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lab.testbed.link import LinkConditions, LinkDirection

DESCRIPTION_KEYS = ("title", "article")


@dataclass(frozen=True)
class Variant:
    """One of them: the line, and who loads what over it."""

    id: str
    # loads: pages by each protocol. fallback: pages where UDP does not come through.
    kind: Literal["loads", "fallback"]
    rtt_ms: float
    # Of TCP and of QUIC.
    congestion: Literal["cubic", "bbr"]
    edges: tuple[str, ...]
    sites: tuple[str, ...]
    protocols: tuple[str, ...] = ()
    # The share of packets that are lost, in each direction.
    loss: float = 0.0
    # Samples for each that the others have: more where loads differ much.
    samples_for_one: int = 1
    # So many of them at the same time, each over a line of its own: where pages wait for packets and hardly for CPU.
    samples_at_once: int = 1

    def conditions(self, mbit: float, queue_kib: int) -> LinkConditions:
        """The same both ways."""
        direction = LinkDirection(self.rtt_ms / 2, mbit, queue_kib, self.loss)
        return LinkConditions(direction, direction)

    def samples(self, usual: int) -> int:
        return usual * self.samples_for_one


def read(settings: Sequence[dict[str, Any]], wanted: Sequence[str]) -> list[Variant]:
    """Those that are wanted, in the order in which they stand."""
    return [_variant(one) for one in settings if one["id"] in wanted]


def _variant(one: dict[str, Any]) -> Variant:
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in one.items()}
    return Variant(**{name: value for name, value in plain.items() if name not in DESCRIPTION_KEYS})
