"""Programs that stand for images, by the path suffixes in `images.toml`."""

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
    """No program stands for the image; the message has the reason."""


@dataclass(frozen=True)
class Image:
    """Additional files of a container's root, and its command."""

    program: Path | None
    path: str
    command: Sequence[str]
    args: Sequence[str]
    # Further files, by their path in the container.
    files: Mapping[str, Path]


def find(reference: str) -> Image:
    """Returns the program of an image. Reads the file for each container, so that tests may replace a program."""
    tables = [tomllib.loads(path.read_text()) for path in (IMAGES, KNOWN) if path.is_file()]
    for table in tables:
        for name in names(reference):
            if name in table:
                return parse(name, table[name], {**os.environ, "PROGRAMS": str(PROGRAMS)})
    raise ImageNotFound(f"no image {reference}: images.toml has no program for it")


def names(reference: str) -> list[str]:
    """Returns the possible names of an image, the most specific first."""
    reference = reference.partition("@")[0]
    folders, slash, last = reference.rpartition("/")
    plain = folders + slash + last.partition(":")[0]
    return [*_path_suffixes(reference), *_path_suffixes(plain)]


def parse(name: str, entry: Mapping[str, object], variables: Mapping[str, str]) -> Image:
    program = _existing_file(name, str(entry["program"]), variables) if "program" in entry else None
    files = {path: _existing_file(name, file, variables) for path, file in dict(entry.get("files", {})).items()}
    path = str(entry.get("path", f"/{program.name}" if program else ""))
    command = list(entry.get("command", [path] if path else []))
    return Image(program, path, command, list(entry.get("args", [])), files)


def _existing_file(name: str, text: str, variables: Mapping[str, str]) -> Path:
    file = Path(_expand_variables(name, text, variables))
    if not file.is_file():
        raise ImageNotFound(f"image {name} is {file}, which does not exist")
    return file


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
