"""Faults of a replica, and the time until all slots are held again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from lab import network
from lab.child import ChildFailed
from lab.replicas.arms import RunningArm

POLL_SECONDS = 0.05
PATIENCE_SECONDS = 15.0
HELD = ("sheave_replica_slots", 'state="held"')


@dataclass(frozen=True)
class Recovery:
    """Times of a fault on the monotonic clock, and what followed."""

    onset: float
    # End of the fault: the replica runs again, or is reached again.
    end: float
    # All slots are held again, by all replicas together.
    all_held: float
    # Fewest slots held during the fault, as replicas report them.
    fewest_held: float


@dataclass(frozen=True)
class Fault:
    """A fault of one replica."""

    kind: str
    arm: RunningArm
    victim: int

    @property
    def slots(self) -> int:
        return self.arm.setup.cap * len(self.arm.setup.endpoints)

    def held(self, *, everyone: bool = True) -> float:
        """Returns the slots held by all replicas, or by all but the victim, as they report them."""
        members = [it for number, it in enumerate(self.arm.members) if everyone or number != self.victim]
        return RunningArm(self.arm.setup, members).metric(*HELD)

    def channel_host(self) -> str:
        """Returns the address of the victim that is for the other replicas alone."""
        return self.arm.setup.members[self.victim].rpartition(":")[0]


def play(fault: Fault, *, onset: float, seconds: float) -> Recovery:
    """Waits for the onset, lets the fault last, and returns when all slots are held again."""
    time.sleep(max(0.0, onset - time.monotonic()))
    began = time.monotonic()
    fewest = float(fault.slots)
    with FAULTS[fault.kind](fault):
        while time.monotonic() < began + seconds:
            # A paused process does not answer, and one that is gone holds nothing.
            fewest = min(fewest, fault.held(everyone=fault.kind.startswith("cut-off")))
            time.sleep(POLL_SECONDS)
    end = time.monotonic()
    while (held := fault.held()) != fault.slots:
        if time.monotonic() > end + PATIENCE_SECONDS:
            raise ChildFailed(f"{held:.0f} of {fault.slots} slots are held {PATIENCE_SECONDS:.0f} s after a fault")
        time.sleep(POLL_SECONDS)
    return Recovery(began, end, time.monotonic(), fewest)


@contextmanager
def _killed(fault: Fault) -> Iterator[None]:
    victim = fault.arm.members[fault.victim]
    os.killpg(victim.child.pid, signal.SIGKILL)
    victim.child.stop()
    yield
    port = int(victim.address.rpartition(":")[2])
    fault.arm.members[fault.victim] = fault.arm.setup.start(fault.victim, port=port, attempt=1)


@contextmanager
def _paused(fault: Fault) -> Iterator[None]:
    pid = fault.arm.members[fault.victim].child.pid
    os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(pid, signal.SIGCONT)


def _cut_off(fault: Fault) -> AbstractContextManager[None]:
    return network.packets_dropped(fault.channel_host())


def _cut_off_one_way(fault: Fault) -> AbstractContextManager[None]:
    return network.packets_dropped(fault.channel_host(), only_sent=True)


FAULTS: dict[str, Callable[[Fault], AbstractContextManager[None]]] = {
    "killed": _killed,
    "paused": _paused,
    "cut-off": _cut_off,
    "cut-off-one-way": _cut_off_one_way,
}
