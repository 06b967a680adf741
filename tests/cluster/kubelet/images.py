"""Which program stands for an image: names end in a path that `images.toml` knows."""

from __future__ import annotations

import os
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.layout import IMAGES, PROGRAMS

KNOWN = Path(__file__).with_name("images.toml")


class ImageNotFound(Exception):
    """Nothing stands for an image; the message says why."""


@dataclass(frozen=True)
class Image:
    """What a container's root has beside what every root has, and what runs in it."""

    program: Path | None
    path: str
    command: Sequence[str]
    args: Sequence[str]


def find(reference: str) -> Image:
    """Read anew for each container, so that tests may put another program in an image's place."""
    tables = [tomllib.loads(path.read_text()) for path in (IMAGES, KNOWN) if path.is_file()]
    for table in tables:
        for name in names(reference):
            if name in table:
                return parse(name, table[name], {**os.environ, "PROGRAMS": str(PROGRAMS)})
    raise ImageNotFound(f"no image {reference}: nothing in images.toml stands for it")


def names(reference: str) -> list[str]:
    """What an image may be called, the most exact first."""
    reference = reference.partition("@")[0]
    folders, slash, last = reference.rpartition("/")
    plain = folders + slash + last.partition(":")[0]
    return [*_path_suffixes(reference), *_path_suffixes(plain)]


def parse(name: str, entry: Mapping[str, object], variables: Mapping[str, str]) -> Image:
    program = None
    if "program" in entry:
        program = Path(_expand_variables(name, str(entry["program"]), variables))
        if not program.is_file():
            raise ImageNotFound(f"image {name} is {program}, which is not there")
    path = str(entry.get("path", f"/{program.name}" if program else ""))
    command = list(entry.get("command", [path] if path else []))
    return Image(program, path, command, list(entry.get("args", [])))


def _path_suffixes(reference: str) -> list[str]:
    parts = reference.split("/")
    return ["/".join(parts[at:]) for at in range(len(parts))]


def _expand_variables(name: str, text: str, variables: Mapping[str, str]) -> str:
    try:
        return string.Template(text).substitute(variables)
    except KeyError as error:
        raise ImageNotFound(
            f"image {name} is ${{{error.args[0]}}}, which is not in the cluster's environment"
        ) from error
