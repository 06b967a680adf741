"""Environment of a result: machine, kernel, versions, load."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from lab import network
from lab.paths import REPOSITORY

LOADED_PER_CPU = 0.25


def describe(network_used: str, versions: dict[str, str]) -> dict[str, Any]:
    """Returns the environment at the beginning of a run."""
    return {
        "commit": commit(),
        "versions": versions,
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": list(os.getloadavg()),
        "network": network_used,
        "congestion_control": network.congestion_control(),
        "python": platform.python_version(),
    }


def is_loaded(environment: dict[str, Any]) -> bool:
    """Returns true if the machine had other load when the run began."""
    return environment["load_average"][0] > LOADED_PER_CPU * environment["cpus"]


def machine_name() -> str:
    """Returns the kind of machine, for the folder name of a run."""
    words = re.findall(r"[a-z0-9]+", cpu_model().lower())
    return "-".join([f"{os.cpu_count()}cpu", *words[:3]])


def cpu_model() -> str:
    with Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def commit() -> str:
    """Returns the commit that is checked out, marked if the tree differs from it."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head} with changes" if changed else head


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return done.stdout.strip()
