"""Go programs: the lab's own, and a peer without a package."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.paths import CACHE, MissingRequirement


def obstacle() -> str | None:
    """Returns the reason why Go programs cannot be built here, or None."""
    return None if shutil.which("go") else "go is not installed: install Go 1.26 or newer (https://go.dev/dl)"


def go(words: Sequence[str], cwd: Path) -> str:
    """Runs a Go command in a folder; returns its output."""
    if reason := obstacle():
        raise MissingRequirement(reason)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    done = subprocess.run(["nice", "go", *words], cwd=cwd, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise MissingRequirement(f"`go {' '.join(words)}` in {cwd} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def build(module: Path) -> Path:
    """Builds the program of one of the lab's modules if it has changed; returns its path."""
    program = CACHE / "lab" / "bin" / module.name
    go(["build", "-trimpath", "-o", str(program), "."], cwd=module)
    return program
