"""Launchers of third-party programs for tests: those of Debian's next suite, the machine's browser, the lab's Envoy, and
Python with the packages of each environment. A missing program gets no launcher.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.balancers import envoy
from lab.debian import DebianSuite
from lab.paths import CACHE, MissingRequirement

SUITE = DebianSuite("forky")
# Modules of nginx, by package: those that the configurations of ingress-nginx use.
NGINX_MODULES = {
    "libnginx-mod-http-ndk": "ndk_http_module.so",
    "libnginx-mod-http-set-misc": "ngx_http_set_misc_module.so",
    "libnginx-mod-http-headers-more-filter": "ngx_http_headers_more_filter_module.so",
}
# The first installed one is used.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser")


def main(folder: Path) -> None:
    """Writes the launchers into a folder."""
    programs: dict[str, Callable[[], Sequence[str | Path]]] = {
        "curl": lambda: SUITE.program("curl", "usr/bin/curl"),
        "nginx": lambda: SUITE.program("nginx", "usr/sbin/nginx"),
        "browser": _browser,
        "python-pinned": lambda: _python(CACHE / "venv-http3"),
        "python-browser": lambda: _python(CACHE / "venv-browser"),
        "python-current": lambda: _python(CACHE / "conformance" / "venv"),
        "testssl": _testssl,
        "sslyze": lambda: _in_environment(CACHE / "conformance" / "venv-sslyze", "sslyze"),
        "node": _node,
        "java": _java,
        "envoy": _envoy,
    }
    for name, command in programs.items():
        launcher = folder / name
        launcher.unlink(missing_ok=True)
        try:
            words = command()
        except MissingRequirement as error:
            print(f"conformance: no {name}: {error}", file=sys.stderr)
            continue
        launcher.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
        launcher.chmod(0o755)
    _nginx_modules(folder / "nginx-modules")


def _nginx_modules(folder: Path) -> None:
    """Links the modules of nginx into a folder."""
    folder.mkdir(exist_ok=True)
    for package, name in NGINX_MODULES.items():
        link = folder / name
        link.unlink(missing_ok=True)
        try:
            link.symlink_to(SUITE.file(package, f"usr/lib/nginx/modules/{name}"))
        except MissingRequirement as error:
            print(f"conformance: no {name}: {error}", file=sys.stderr)


def _browser() -> Sequence[str | Path]:
    for name in BROWSERS:
        if found := shutil.which(name):
            return [found]
    raise MissingRequirement(f"none of {', '.join(BROWSERS)} is installed")


def _node() -> Sequence[str | Path]:
    packages = CACHE / "conformance" / "node-packages" / "node_modules"
    node = shutil.which("node")
    if not node or not packages.is_dir():
        raise MissingRequirement("Node.js or its packages are missing: run scripts/setup conformance")
    return ["env", f"NODE_PATH={packages}", node]


def _java() -> Sequence[str | Path]:
    java = shutil.which("java")
    if not java or not (CACHE / "conformance" / "java-packages").is_dir():
        raise MissingRequirement("Java or its packages are missing: run scripts/setup conformance")
    return [java]


def _envoy() -> Sequence[str | Path]:
    envoy.prepare()
    return [envoy.PROGRAM]


def _testssl() -> Sequence[str | Path]:
    """A shell script, which runs with the machine's programs and needs its own data files."""
    for name in ("bash", "openssl", "dig", "hexdump", "ps"):
        if not shutil.which(name):
            raise MissingRequirement(f"{name} is missing: run scripts/setup conformance")
    script = SUITE.file("testssl.sh", "usr/bin/testssl")
    data = SUITE.file("testssl.sh", "etc/testssl/tls_data.txt").parent
    return ["env", f"TESTSSL_INSTALL_DIR={data}", "TERM=dumb", "bash", script]


def _python(environment: Path) -> Sequence[str | Path]:
    return _in_environment(environment, "python")


def _in_environment(environment: Path, name: str) -> Sequence[str | Path]:
    program = environment / "bin" / name
    if not program.is_file():
        raise MissingRequirement(f"{program} is missing: run scripts/setup conformance")
    return [program]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
