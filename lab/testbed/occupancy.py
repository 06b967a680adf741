"""One lab at a time has the testbed; whoever comes next removes what a killed one left.

The lock is the kernel's and goes with its process, however that ends. So whoever holds it knows that what lies around
belongs to nobody. Namespaces, links and rules need no removal: they go with the processes in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.lock import take
from lab.paths import MissingRequirement
from lab.testbed import cgroups
from lab.testbed.cgroups import Group

LOCK = Path("/run/sheave-lab.lock")
# Another command may hold the lock for the moment that it takes to look for leftovers.
PATIENCE_SECONDS = 2.0


class Occupied(Exception):
    """Another lab runs."""


@contextmanager
def occupy() -> Iterator[Group]:
    """Takes the testbed, empty; yields the group that everything is to run in. This process runs in it too."""
    with LOCK.open("a+") as lock:
        if not take(lock, PATIENCE_SECONDS):
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            raise Occupied(f"another lab runs (process {owner}): wait until it ends, or end it")
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        top = Group(cgroups.of_machine())
        top.remove()
        home = cgroups.current(top.version, Path("/proc/self/cgroup").read_text())
        try:
            top.create()
            top.open_for_children()
            top.child("lab").create().take(os.getpid())
        except OSError as error:
            raise MissingRequirement(f"control groups cannot be used here: {error}") from error
        try:
            yield top
        finally:
            for folder in home:
                (folder / "cgroup.procs").write_text(str(os.getpid()))
            top.remove()


def sweep() -> None:
    """Removes what a lab left that was killed, and nothing of one that is alive. Without root there is nothing."""
    found = cgroups.version(Path("/proc/mounts").read_text())
    if os.geteuid() != 0 or found is None or not any(folder.exists() for folder in Group(found).folders):
        return
    with LOCK.open("a+") as lock:
        if take(lock):
            Group(found).remove()
