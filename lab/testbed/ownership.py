"""Ownership of the testbed: one lab at a time, which removes the leftovers of a killed one.

The kernel releases the lock with its process, so the owner of the lock knows that all leftovers are stale. Namespaces,
links and rules need no removal: they end with their processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.lock import try_lock
from lab.paths import MissingRequirement
from lab.testbed import cgroups
from lab.testbed.cgroups import ControlGroup

LOCK = Path("/run/sheave-lab.lock")
# Another command may hold the lock while it looks for leftovers.
PATIENCE_SECONDS = 2.0


class TestbedBusy(Exception):
    """Another lab owns the testbed."""


@contextmanager
def acquire() -> Iterator[ControlGroup]:
    """Acquires the testbed and empties it; yields the parent of all control groups. This process joins a group too."""
    with LOCK.open("a+") as lock:
        if not try_lock(lock, PATIENCE_SECONDS):
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            raise TestbedBusy(f"another lab runs (process {owner}): wait until it ends, or end it")
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        top = ControlGroup(cgroups.machine_version())
        top.remove()
        home = cgroups.process_groups(top.version, Path("/proc/self/cgroup").read_text())
        try:
            top.create()
            top.delegate_controllers()
            top.child("lab").create().add_process(os.getpid())
        except OSError as error:
            raise MissingRequirement(f"cannot use control groups: {error}") from error
        try:
            yield top
        finally:
            for folder in home:
                (folder / "cgroup.procs").write_text(str(os.getpid()))
            top.remove()


def remove_leftovers() -> None:
    """Removes the leftovers of a killed lab, unless a lab is running. Without root there are none."""
    found = cgroups.detect_version(Path("/proc/mounts").read_text())
    if os.geteuid() != 0 or found is None or not any(folder.exists() for folder in ControlGroup(found).folders):
        return
    with LOCK.open("a+") as lock:
        if try_lock(lock):
            ControlGroup(found).remove()
