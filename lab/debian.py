"""Programs of another Debian suite, unpacked into a folder and run from there.

Nothing is installed, and the machine's own apt is untouched: apt uses separate lists, state and cache with an empty
record of installed packages, so that it fetches every library a program needs. The programs run under the dynamic
loader of that suite, whose C library is newer than the machine's. Root is not required.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from lab.paths import CACHE, MissingRequirement

MACHINE_SOURCES = ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")


class DebianSuite:
    """One suite, and the folder of its unpacked packages."""

    def __init__(self, name: str, folder: Path = CACHE / "peers") -> None:
        self.name = name
        self._folder = folder / name
        self._root = self._folder / "root"

    def program(self, package: str, path: str) -> list[str | Path]:
        """Returns the command line of a program; fetches its package if it is missing."""
        program = self.file(package, path)
        loader = next(self._root.glob("usr/lib*/ld-linux-*.so.*"))
        libraries = next(self._root.glob("usr/lib/*-linux-gnu"))
        return [loader, "--library-path", libraries, program]

    def file(self, package: str, path: str) -> Path:
        """Returns a file of a package; fetches the package if it is missing."""
        if not (self._root / path).is_file():
            self._unpack(package)
        return self._root / path

    def _unpack(self, package: str) -> None:
        apt = self._apt_options()
        self._run(["apt-get", *apt, "-qq", "update"])
        archives = self._folder / "cache" / "archives"
        self._run(["apt-get", *apt, "-qq", "--yes", "--download-only", "--no-install-recommends", "install", package])
        self._root.mkdir(exist_ok=True)
        for archive in sorted(archives.glob("*.deb")):
            self._run(["dpkg-deb", "--extract", archive, self._root])

    def _apt_options(self) -> list[str]:
        for folder in ("state/lists/partial", "cache/archives/partial"):
            (self._folder / folder).mkdir(parents=True, exist_ok=True)
        status = self._folder / "state" / "status"
        status.touch()
        sources = self._folder / "suite.sources"
        mirror, keyring = _mirror()
        sources.write_text(f"Types: deb\nURIs: {mirror}\nSuites: {self.name}\nComponents: main\nSigned-By: {keyring}\n")
        options = {
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "-",
            "Dir::State": self._folder / "state",
            "Dir::State::Status": status,
            "Dir::Cache": self._folder / "cache",
            "Acquire::Languages": "none",
            # A list that cannot be fetched is an error; otherwise apt would later report only an unknown package.
            "Acquire::Retries": "3",
            "APT::Update::Error-Mode": "any",
            # The download user of apt cannot write to this repository's cache.
            "APT::Sandbox::User": "",
        }
        return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]

    def _run(self, argv: list[str | Path]) -> None:
        try:
            subprocess.run(argv, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise MissingRequirement(f"{argv[0]} is missing: the peers come as Debian packages") from error
        except subprocess.CalledProcessError as error:
            raise MissingRequirement(f"cannot fetch packages of Debian {self.name}: {error.stderr.strip()}") from error


def _mirror() -> tuple[str, str]:
    """Returns the mirror and keyring that the machine uses for Debian."""
    for path in map(Path, MACHINE_SOURCES):
        if not path.is_file():
            continue
        text = path.read_text()
        found = re.search(r"^URIs:\s*(\S+/debian/?)\s*$", text, re.MULTILINE) or re.search(
            r"^deb\s+(?:\[[^]]*\]\s*)?(\S+/debian/?)\s", text, re.MULTILINE
        )
        if found:
            keyring = re.search(r"^Signed-By:\s*(/\S+)", text, re.MULTILINE)
            default = "/usr/share/keyrings/debian-archive-keyring.gpg"
            return found.group(1), keyring.group(1) if keyring else default
    raise MissingRequirement(
        f"no Debian mirror is named in {' or '.join(MACHINE_SOURCES)}: the peers come as Debian packages"
    )
