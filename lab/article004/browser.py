"""The browser of one client: how it is made to speak this protocol and no other, and what a load came to."""

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
# The whole browser: the shell without a head has no switch for versions of TLS.
PROGRAMS = ("chromium", "chromium-browser")


@dataclass(frozen=True)
class Protocol:
    """What a load is to go by."""

    id: str
    title: str
    # In the browser's words: nextHopProtocol, securityDetails.
    name: str
    tls: str
    # The host's name of the article: one is for each version of TLS.
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


# In the article's order. There is no HTTP/3 with TLS 1.2: on that host it is QUIC's own 1.3 as well.
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
# One that comes by HTTP/2 and goes on to HTTP/3 where it is told of it. To force another port makes it take this host's
# certificate over QUIC, and nothing else: nobody else vouches for it.
DISCOVERING = Protocol(
    "willing", "told of H3", "h2", "TLS 1.3", TLS_1_3[0], ("--enable-quic", f"--origin-to-force-quic-on={TLS_1_3[0]}:1")
)


@dataclass(frozen=True)
class PageLoad:
    """One page load. Without a failure all of it came, by what it was to come by."""

    ms: float | None
    failure: str | None
    # What its requests went by, most first.
    by: tuple[str, ...] = ()
    tls: str | None = None
    round_trips: int = 0


def program() -> str | None:
    """The first of PROGRAMS that the machine has."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def version() -> str:
    output = subprocess.run([str(program()), "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\d+\.\d+\.\d+\.\d+", output)
    return found.group(0) if found else output.strip()


def obstacle() -> str | None:
    if program() is None:
        return f"no browser is there ({' or '.join(PROGRAMS)}); run scripts/setup lab, or install Debian's chromium"
    if not PYTHON.is_file():
        return f"{PYTHON} is not there: run scripts/setup lab"
    return None


class Browser:
    """Chromium on a host, a fresh process for each visit."""

    def __init__(self, host: Host, address: str, pin: str, folder: Path) -> None:
        self._profile = folder / "profile"
        self._flags = (
            # Names lead to the edge, and to nobody else.
            f"--host-resolver-rules=MAP *.lab.example {address}, MAP * ~NOTFOUND",
            f"--ignore-certificate-errors-spki-list={pin}",
        )
        argv = [PYTHON, DRIVER]
        self._child = host.start(argv, folder / "browser.log", piped=True, env={"HOME": str(folder), "LC_ALL": "C"})

    @contextmanager
    def visit(self, flags: Sequence[str], *, again: bool = False) -> Iterator[Visit]:
        """A process that knows nothing, or `again` with what the one before has left."""
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
            raise ChildFailed(f"the browser's driver ended{self._child.log_end()}")
        return json.loads(line)

    def abort(self) -> None:
        """Whoever waits for an answer gets none."""
        self._child.terminate()

    def stop(self) -> None:
        self._child.stop()


class Visit:
    """While the browser is open."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def load(self, url: str, timeout_seconds: float) -> PageLoad:
        """Whatever it comes by."""
        return read(self._browser._request("load", url=url, timeout_ms=1000 * timeout_seconds))


def read(output: dict[str, Any]) -> PageLoad:
    """What the driver says of a load."""
    if failure := output.get("failure"):
        return PageLoad(None, failure)
    counts: dict[str, int] = output["protocols"]
    by = tuple(sorted(counts, key=counts.__getitem__, reverse=True))
    return PageLoad(round(output["ms"], 1), None, by, output["tls"], output["round_trips"])


def check_protocol(load: PageLoad, protocol: Protocol, round_trips: int) -> PageLoad:
    """The load, which is a failure if it went by anything else, or was not all."""
    if load.failure:
        return load
    wanted = PageLoad(load.ms, None, (protocol.name,), protocol.tls, round_trips)
    if load == wanted:
        return load
    seen = f"{load.round_trips} round trips by {' and '.join(load.by)}, {load.tls}"
    return PageLoad(None, f"came otherwise: {seen}", load.by, load.tls, load.round_trips)
