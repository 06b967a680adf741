"""One lab at a time has the testbed; whoever comes next removes what a killed one left.

The lock is the kernel's and goes with its process, however that ends. So whoever holds it knows that what lies around
belongs to nobody. Namespaces, links and rules need no removal: they go with the processes in them.
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
# Another command may hold the lock for the moment that it takes to look for leftovers.
PATIENCE_SECONDS = 2.0


class TestbedBusy(Exception):
    """Another lab runs."""


@contextmanager
def acquire() -> Iterator[ControlGroup]:
    """Takes the testbed, empty; yields the group that everything is to run in. This process runs in it too."""
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
            raise MissingRequirement(f"control groups cannot be used here: {error}") from error
        try:
            yield top
        finally:
            for folder in home:
                (folder / "cgroup.procs").write_text(str(os.getpid()))
            top.remove()


def remove_leftovers() -> None:
    """Removes what a lab left that was killed, and nothing of one that is alive. Without root there is nothing."""
    found = cgroups.detect_version(Path("/proc/mounts").read_text())
    if os.geteuid() != 0 or found is None or not any(folder.exists() for folder in ControlGroup(found).folders):
        return
    with LOCK.open("a+") as lock:
        if try_lock(lock):
            ControlGroup(found).remove()
