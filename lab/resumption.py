"""A run that was cut off, and what it takes to go on with it: the same commit, versions and parts, or it is another run.

While a run has not come to its end there is a file in its folder that says what it is a run of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab.paths import MissingRequirement

MARK = "unfinished.json"
Terms = dict[str, Any]


def begin(folder: Path, terms: Terms) -> None:
    (folder / MARK).write_text(json.dumps(terms, indent=1) + "\n")


def end(folder: Path) -> None:
    (folder / MARK).unlink()


def find(folders: Iterable[Path], terms: Terms) -> Path:
    """The newest of them in which a run on these terms was cut off."""
    marks = [folder / MARK for folder in folders if (folder / MARK).is_file()]
    if not marks:
        raise MissingRequirement("no run was cut off, so there is nothing to resume: run it without --resume")
    newest = max(marks, key=lambda mark: mark.stat().st_mtime)
    before = json.loads(newest.read_text())
    if changed := [name for name in terms if terms[name] != before.get(name)]:
        name = changed[0]
        raise MissingRequirement(
            f"{newest.parent} was a run with {name} {before.get(name)!r}, not {terms[name]!r}:"
            " resume it as it was begun, or run everything anew"
        )
    return newest.parent


def mend(path: Path) -> None:
    """Takes a line off the end of a file that was not written to its end."""
    if path.is_file():
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        path.write_bytes(whole + b"\n" if whole else b"")
