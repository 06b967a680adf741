"""Resumption of an interrupted run with the same commit, versions and parts; otherwise it is another run.

An unfinished run has a file in its folder with this identity.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab.paths import MissingRequirement

MARKER = "unfinished.json"
RunIdentity = dict[str, Any]


def begin(folder: Path, identity: RunIdentity) -> None:
    (folder / MARKER).write_text(json.dumps(identity, indent=1) + "\n")


def end(folder: Path) -> None:
    (folder / MARKER).unlink()


def find(folders: Iterable[Path], identity: RunIdentity) -> Path:
    """Returns the newest interrupted run with this identity."""
    markers = [folder / MARKER for folder in folders if (folder / MARKER).is_file()]
    if not markers:
        raise MissingRequirement("no interrupted run to resume: run it without --resume")
    newest = max(markers, key=lambda marker: marker.stat().st_mtime)
    before = json.loads(newest.read_text())
    if changed := [name for name in identity if identity[name] != before.get(name)]:
        name = changed[0]
        raise MissingRequirement(
            f"{newest.parent} was a run with {name} {before.get(name)!r}, not {identity[name]!r}:"
            " resume it with the same options, or start a new run"
        )
    return newest.parent


def drop_partial_line(path: Path) -> None:
    """Removes an incomplete last line of a file."""
    if path.is_file():
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        path.write_bytes(whole + b"\n" if whole else b"")
