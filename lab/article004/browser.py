"""Browser of one client: flags that force a protocol, and the result of a load."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.child import Child, ChildFailed
from lab.paths import CACHE
from lab.testbed.hosts import Host

PYTHON = CACHE / "venv-browser" / "bin" / "python"
DRIVER = Path(__file__).with_name("driver.py")
# Full browsers: the headless shell has no switch for TLS versions.
PROGRAMS = ("chromium", "chromium-browser")


@dataclass(frozen=True)
class Protocol:
    """Protocol that a load must use."""

    id: str
    title: str
    # In the browser's terms: nextHopProtocol, securityDetails.
    name: str
    tls: str
    # Host name of the article, one for each TLS version.
    host: str
    flags: tuple[str, ...]

    def flags_for(self, port: int) -> list[str]:
        return [flag.format(origin=f"{self.host}:{port}") for flag in self.flags]


TLS_1_2 = ("tls12.lab.example", "TLS 1.2", "--ssl-version-max=tls1.2")
TLS_1_3 = ("tls13.lab.example", "TLS 1.3", "--ssl-version-min=tls1.3")
HTTP_1 = ("http/1.1", ("--disable-quic", "--disable-http2"))
HTTP_2 = ("h2", ("--disable-quic",))


def _over_tcp(id: str, title: str, http: tuple[str, tuple[str, ...]], tls: tuple[str, str, str]) -> Protocol:
    name, flags = http
    host, version, flag = tls
    return Protocol(id, title, name, version, host, (*flags, flag))


# In the article's order. HTTP/3 does not exist with TLS 1.2: on that host it uses QUIC's TLS 1.3 as well.
PROTOCOLS = {
    protocol.id: protocol
    for protocol in (
        _over_tcp("h1-tls12", "H1, TLS 1.2", HTTP_1, TLS_1_2),
        _over_tcp("h1-tls13", "H1, TLS 1.3", HTTP_1, TLS_1_3),
        _over_tcp("h2-tls12", "H2, TLS 1.2", HTTP_2, TLS_1_2),
        _over_tcp("h2-tls13", "H2, TLS 1.3", HTTP_2, TLS_1_3),
        Protocol("h3", "H3", "h3", "QUIC", TLS_1_3[0], ("--enable-quic", "--origin-to-force-quic-on={origin}")),
    )
}
# A browser that starts with HTTP/2 and follows Alt-Svc to HTTP/3. To force QUIC on another port makes it accept this
# host's certificate over QUIC, which no trusted authority has signed, and has no other effect.
DISCOVERING = Protocol(
    "willing", "told of H3", "h2", "TLS 1.3", TLS_1_3[0], ("--enable-quic", f"--origin-to-force-quic-on={TLS_1_3[0]}:1")
)


@dataclass(frozen=True)
class PageLoad:
    """One page load. Without a failure it is complete and used the expected protocol."""

    ms: float | None
    failure: str | None
    # Protocols of its requests, the most frequent first.
    by: tuple[str, ...] = ()
    tls: str | None = None
    round_trips: int = 0


def program() -> str | None:
    """Returns the first installed program of PROGRAMS."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def version() -> str:
    output = subprocess.run([str(program()), "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\d+\.\d+\.\d+\.\d+", output)
    return found.group(0) if found else output.strip()


def obstacle() -> str | None:
    if program() is None:
        return f"no browser is installed ({' or '.join(PROGRAMS)}); run scripts/setup lab, or install Debian's chromium"
    if not PYTHON.is_file():
        return f"{PYTHON} is missing: run scripts/setup lab"
    return None


class Browser:
    """Chromium on a host, with a fresh process for each visit."""

    def __init__(self, host: Host, address: str, pin: str, folder: Path) -> None:
        self._profile = folder / "profile"
        self._flags = (
            # All names resolve to the edge; all others fail.
            f"--host-resolver-rules=MAP *.lab.example {address}, MAP * ~NOTFOUND",
            f"--ignore-certificate-errors-spki-list={pin}",
        )
        argv = [PYTHON, DRIVER]
        self._child = host.start(argv, folder / "browser.log", piped=True, env={"HOME": str(folder), "LC_ALL": "C"})

    @contextmanager
    def visit(self, flags: Sequence[str], *, again: bool = False) -> Iterator[Visit]:
        """Yields a browser with an empty profile, or with the previous profile if `again`."""
        if not again:
            shutil.rmtree(self._profile, ignore_errors=True)
        self._request("open", program=program(), profile=str(self._profile), flags=[*self._flags, *flags])
        try:
            yield Visit(self)
        finally:
            self._request("close")

    def _request(self, what: str, **job: Any) -> dict[str, Any]:
        self._child.stdin.write(json.dumps({"do": what, **job}) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise ChildFailed(f"the browser's driver exited{self._child.log_end()}")
        return json.loads(line)

    def abort(self) -> None:
        """Ends the driver, so that a pending request fails."""
        self._child.terminate()

    def stop(self) -> None:
        self._child.stop()


class Visit:
    """An open browser."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def load(self, url: str, timeout_seconds: float) -> PageLoad:
        """Loads a page by any protocol."""
        return read(self._browser._request("load", url=url, timeout_ms=1000 * timeout_seconds))


def read(output: dict[str, Any]) -> PageLoad:
    """Parses the driver's report of a load."""
    if failure := output.get("failure"):
        return PageLoad(None, failure)
    counts: dict[str, int] = output["protocols"]
    by = tuple(sorted(counts, key=counts.__getitem__, reverse=True))
    return PageLoad(round(output["ms"], 1), None, by, output["tls"], output["round_trips"])


def check_protocol(load: PageLoad, protocol: Protocol, round_trips: int) -> PageLoad:
    """Returns the load, or a failure if it used another protocol or is incomplete."""
    if load.failure:
        return load
    wanted = PageLoad(load.ms, None, (protocol.name,), protocol.tls, round_trips)
    if load == wanted:
        return load
    seen = f"{load.round_trips} round trips by {' and '.join(load.by)}, {load.tls}"
    return PageLoad(None, f"unexpected transfer: {seen}", load.by, load.tls, load.round_trips)
