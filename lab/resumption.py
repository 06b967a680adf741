"""A run that was cut off, and what it takes to go on with it: the same commit, versions and parts, or it is another run.

While a run has not come to its end there is a file in its folder that says what it is a run of.
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
    """The newest of them in which a run on these terms was cut off."""
    markers = [folder / MARKER for folder in folders if (folder / MARKER).is_file()]
    if not markers:
        raise MissingRequirement("no run was cut off, so there is nothing to resume: run it without --resume")
    newest = max(markers, key=lambda marker: marker.stat().st_mtime)
    before = json.loads(newest.read_text())
    if changed := [name for name in identity if identity[name] != before.get(name)]:
        name = changed[0]
        raise MissingRequirement(
            f"{newest.parent} was a run with {name} {before.get(name)!r}, not {identity[name]!r}:"
            " resume it as it was begun, or run everything anew"
        )
    return newest.parent


def drop_partial_line(path: Path) -> None:
    """Takes a line off the end of a file that was not written to its end."""
    if path.is_file():
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        path.write_bytes(whole + b"\n" if whole else b"")
