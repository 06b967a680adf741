"""Go programs that the lab builds: its own, and a peer of which there is no package."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.paths import CACHE, MissingRequirement


def obstacle() -> str | None:
    """Why nothing can be built here, in a sentence; None if it can."""
    return None if shutil.which("go") else "go is not there: install Go 1.26 or newer (https://go.dev/dl)"


def go(words: Sequence[str], cwd: Path) -> str:
    """Runs a command of Go in a folder, and returns what it says."""
    if reason := obstacle():
        raise MissingRequirement(reason)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    done = subprocess.run(["nice", "go", *words], cwd=cwd, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise MissingRequirement(f"`go {' '.join(words)}` in {cwd} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def build(module: Path) -> Path:
    """The program of one of the lab's own modules, which Go builds anew where it has changed."""
    program = CACHE / "lab" / "bin" / module.name
    go(["build", "-trimpath", "-o", str(program), "."], cwd=module)
    return program
