"""The stand-in for control groups in a kernel that has no other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WholeKernel:
    """All processes of a kernel, which end with it."""

    name: str = "kernel"

    def child(self, name: str) -> WholeKernel:
        return WholeKernel(name)

    def create(self) -> WholeKernel:
        return self

    def enter_command(self, argv: Sequence[object]) -> list[object]:
        return list(argv)

    def cpu_seconds(self) -> float:
        """Returns 0: the CPU time of the machine is that of the experiment."""
        return 0.0

    def remove(self) -> None:
        """Does nothing."""
