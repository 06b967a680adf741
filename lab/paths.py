"""Where things are: the repository, its cache, and the binaries that cargo builds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = REPOSITORY / ".cache"


class Missing(Exception):
    """Something that has to be there is not; the message says what to do."""


def build(*packages: str) -> None:
    """Builds release binaries, so that what is measured is what the tree says."""
    argv = ["cargo", "build", "--release", "--locked"]
    for package in packages:
        argv += ["--package", package]
    try:
        done = subprocess.run(argv, cwd=REPOSITORY, check=False)
    except FileNotFoundError as error:
        raise Missing("cargo is not there: run scripts/setup lab") from error
    if done.returncode != 0:
        raise Missing(f"`{' '.join(argv)}` failed")


def binary(name: str) -> Path:
    """A release binary of the workspace."""
    target = REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target")
    path = target / "release" / name
    if not path.is_file():
        raise Missing(f"{path} is not there: run `cargo build --release --package {name}`")
    return path
