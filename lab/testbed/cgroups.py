"""Control groups of versions 1 and 2: CPU quotas, CPU time, and the processes of a run by name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.paths import MissingRequirement

# Parent of all groups of the lab, so that leftovers of a killed lab can be found.
TOP = "sheave-lab"
PERIOD_MICROSECONDS = 100_000
REMOVAL_SECONDS = 10.0

# Enters the groups, then replaces itself with the command, so that the command never runs outside of them.
ENTER = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"'


class CgroupV1:
    """Version 1: one hierarchy for each controller. Quotas are in `cpu`, CPU time in `cpuacct`; both may be one
    hierarchy.
    """

    controllers = ("cpu", "cpuacct")

    def __init__(self, cpu: Path, accounting: Path) -> None:
        self.mounts = tuple(dict.fromkeys((cpu, accounting)))
        self._cpu, self._accounting = cpu, accounting

    def delegate_controllers(self, name: str) -> None:
        """Does nothing: every group may have child groups."""

    def files(self, millicores: int | None) -> Mapping[str, str]:
        quota = -1 if millicores is None else _quota(millicores)
        # Shares are relative to the machine's other groups; the lab's own groups are equal.
        return {
            "cpu.shares": "40000",
            "cpu.cfs_period_us": str(PERIOD_MICROSECONDS),
            "cpu.cfs_quota_us": str(quota),
        }

    def settings_folder(self, name: str) -> Path:
        return self._cpu / name

    def cpu_seconds(self, name: str) -> float:
        return int((self._accounting / name / "cpuacct.usage").read_text()) / 1e9


class CgroupV2:
    """Version 2: one hierarchy. A group has a controller if its parent delegates it."""

    # The only line of /proc/PID/cgroup names no controller.
    controllers = ("",)

    def __init__(self, mount: Path) -> None:
        self.mounts = (mount,)
        self._mount = mount

    def delegate_controllers(self, name: str) -> None:
        for folder in (self._mount, self._mount / name):
            (folder / "cgroup.subtree_control").write_text("+cpu")

    def files(self, millicores: int | None) -> Mapping[str, str]:
        quota = "max" if millicores is None else str(_quota(millicores))
        return {"cpu.weight": "10000", "cpu.max": f"{quota} {PERIOD_MICROSECONDS}"}

    def settings_folder(self, name: str) -> Path:
        return self._mount / name

    def cpu_seconds(self, name: str) -> float:
        lines = (self._mount / name / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("usage_usec")) / 1e6


Version = CgroupV1 | CgroupV2


def detect_version(mounts: str) -> Version | None:
    """Returns the version in /proc/mounts. A hybrid machine has its CPU controller in version 1."""
    lines = [line.split() for line in mounts.splitlines()]
    old = [(Path(target), options.split(",")) for _, target, kind, options, *_ in lines if kind == "cgroup"]
    controllers = {option: target for target, options in old for option in options}
    if "cpu" in controllers and "cpuacct" in controllers:
        return CgroupV1(controllers["cpu"], controllers["cpuacct"])
    return next((CgroupV2(Path(target)) for _, target, kind, *_ in lines if kind == "cgroup2"), None)


def machine_version() -> Version:
    found = detect_version(Path("/proc/mounts").read_text())
    if found is None:
        raise MissingRequirement("no control groups are mounted; the testbed needs them for the pods' CPU quotas")
    return found


def process_groups(version: Version, text: str) -> list[Path]:
    """Returns the groups of a process in the testbed's hierarchies, from its /proc/PID/cgroup."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    return [mount / paths[name] for mount, name in zip(version.mounts, version.controllers, strict=False)]


@dataclass(frozen=True)
class ControlGroup:
    """`TOP` or a group below it."""

    version: Version
    name: str = TOP

    @property
    def folders(self) -> list[Path]:
        return [mount / self.name for mount in self.version.mounts]

    def child(self, name: str) -> ControlGroup:
        return ControlGroup(self.version, f"{self.name}/{name}")

    def create(self, millicores: int | None = None) -> ControlGroup:
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
        self.limit(millicores)
        return self

    def delegate_controllers(self) -> None:
        self.version.delegate_controllers(self.name)

    def limit(self, millicores: int | None) -> None:
        """Sets the CPU quota; None is unlimited."""
        folder = self.version.settings_folder(self.name)
        for name, text in self.version.files(millicores).items():
            (folder / name).write_text(text)

    def cpu_seconds(self) -> float:
        return self.version.cpu_seconds(self.name)

    def enter_command(self, argv: Sequence[object]) -> list[object]:
        """Returns a command that runs in this group."""
        return ["sh", "-c", ENTER, "enter", *self.folders, "--", *argv]

    def add_process(self, pid: int) -> None:
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def processes(self) -> set[int]:
        """Returns the processes of this group, without those of its child groups."""
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(FileNotFoundError):
                found.update(map(int, (folder / "cgroup.procs").read_text().split()))
        return found

    def _child_names(self) -> set[str]:
        folders = [folder for folder in self.folders if folder.is_dir()]
        return {path.name for folder in folders for path in folder.iterdir() if path.is_dir()}

    def remove(self) -> None:
        """Kills all processes of the group and its child groups, and removes the groups; retries until the processes
        are gone.
        """
        deadline = time.monotonic() + REMOVAL_SECONDS
        while True:
            for name in self._child_names():
                self.child(name).remove()
            for pid in self.processes() - {os.getpid()}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                for folder in self.folders:
                    with contextlib.suppress(FileNotFoundError):
                        folder.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def _quota(millicores: int) -> int:
    return millicores * PERIOD_MICROSECONDS // 1000
