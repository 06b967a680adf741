"""Paths of the repository, of its cache, and of the binaries that cargo builds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = REPOSITORY / ".cache"


# Path of a Sheave that was built elsewhere; it replaces the build.
SHEAVE_BINARY = "SHEAVE_BINARY"


class MissingRequirement(Exception):
    """A requirement is missing; the message says how to provide it."""


def build(*packages: str, shipped: bool = False) -> None:
    """Builds release binaries of the current tree. `shipped` builds Sheave with profile-guided optimization, which
    takes longer.
    """
    if shipped and "sheave" in packages and SHEAVE_BINARY not in os.environ:
        os.environ[SHEAVE_BINARY] = _build_shipped()
    wanted = [package for package in packages if package != "sheave" or SHEAVE_BINARY not in os.environ]
    if not wanted:
        return
    _cargo_build("release", *wanted)


def build_for_demo() -> None:
    """Builds Sheave in the profile `demo`, without link-time optimisation, and makes the lab use it."""
    if SHEAVE_BINARY not in os.environ:
        _cargo_build("demo", "sheave")
        os.environ[SHEAVE_BINARY] = str(_target() / "demo" / "sheave")


def _cargo_build(profile: str, *packages: str) -> None:
    argv = ["cargo", "build", "--profile", profile, "--locked"]
    for package in packages:
        argv += ["--package", package]
    try:
        done = subprocess.run(argv, cwd=REPOSITORY, check=False)
    except FileNotFoundError as error:
        raise MissingRequirement("cargo is not installed: run scripts/setup lab") from error
    if done.returncode != 0:
        raise MissingRequirement(f"`{' '.join(argv)}` failed")


def _build_shipped() -> str:
    """Returns the path of the optimized build."""
    done = subprocess.run(["scripts/release"], cwd=REPOSITORY, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise MissingRequirement("`scripts/release` failed")
    return done.stdout.strip()


def binary(name: str) -> Path:
    """Returns the path of a release binary of the workspace."""
    path = _target() / "release" / name
    if name == "sheave" and SHEAVE_BINARY in os.environ:
        path = Path(os.environ[SHEAVE_BINARY]).resolve()
    if not path.is_file():
        raise MissingRequirement(f"{path} is missing: run `cargo build --release --package {name}`")
    return path


def _target() -> Path:
    return REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target")
