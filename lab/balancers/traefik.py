"""Traefik, built from source and configured by files, as its manual advises for changing endpoints."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lab.balancers import BalancerTask, Placement, RunningBalancer, UnsupportedTask, listening, replace_file
from lab.bench import print_status
from lab.golang import go
from lab.paths import CACHE

VERSION = "3.4.1"
MODULE = f"github.com/traefik/traefik/v3@v{VERSION}"
FOLDER = CACHE / "peers" / f"traefik-{VERSION}"
PROGRAM = FOLDER / "traefik"
NAMED = "github.com/traefik/traefik/v3/pkg/version.Version"


def prepare() -> str:
    if not PROGRAM.is_file():
        _build()
    output = subprocess.run([PROGRAM, "version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"Version:\s+(\S+)", output)
    return found.group(1) if found else output.strip()


def _build() -> None:
    """Builds Traefik from a copy of its source: no package exists, and `go install` rejects replacements."""
    print_status(f"building Traefik {VERSION}, once; this takes about ten minutes of CPU")
    FOLDER.mkdir(parents=True, exist_ok=True)
    module = json.loads(go(["mod", "download", "-json", MODULE], cwd=FOLDER))
    source = FOLDER / "source"
    shutil.rmtree(source, ignore_errors=True)
    # The module cache is read-only; a copy to build in must be writable.
    subprocess.run(["cp", "--recursive", "--no-preserve=mode", module["Dir"], source], check=True)
    fresh = FOLDER / "traefik.fresh"
    flags = ["-trimpath", "-ldflags", f"-s -w -X {NAMED}={VERSION}"]
    go(["build", *flags, "-o", str(fresh), "./cmd/traefik"], cwd=source)
    fresh.replace(PROGRAM)
    shutil.rmtree(source)


def start(task: BalancerTask, placement: Placement) -> RunningBalancer:
    if task.routes is not None or task.cap is not None or task.splice or task.failure_policy or task.algorithm:
        raise UnsupportedTask(
            "traefik.py supports no routes and no failure policy; Traefik has neither a cap on endpoints nor splicing"
        )
    if task.endpoint_protocol != "http1" or task.certificate or task.client_streams or task.removed_headers:
        raise UnsupportedTask("traefik.py supports neither TLS nor HTTP/2 nor removed headers")
    address = placement.choose_address()
    # A separate folder, because Traefik watches all its files.
    watched = placement.folder / "watched"
    watched.mkdir()
    dynamic = watched / "dynamic.yaml"
    _write_dynamic(dynamic, task.in_flight, task.endpoints)
    static = placement.folder / "traefik.yaml"
    static.write_text(json.dumps(_static(address, watched, task.keep_idle), indent=1))
    # Go has no workers; this is the number of parallel threads.
    argv = ["env", f"GOMAXPROCS={task.workers}", PROGRAM, f"--configFile={static}"]
    child = placement.start("traefik", argv, listening(address))
    return RunningBalancer(address, child, partial(_write_dynamic, dynamic, task.in_flight))


def _static(address: str, watched: Path, keep_idle: bool) -> dict[str, Any]:
    """Returns a static configuration; access log, dashboard, metrics and tracing are off by default."""
    return {
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "log": {"level": "WARN"},
        "entryPoints": {
            "lab": {
                "address": address,
                "transport": {"respondingTimeouts": {"readTimeout": "60s", "idleTimeout": "60s"}},
            }
        },
        "providers": {"file": {"directory": str(watched), "watch": True}, "providersThrottleDuration": "100ms"},
        # The default of 200 idle connections for each endpoint is too low for some loads; -1 disables them.
        "serversTransport": {
            "maxIdleConnsPerHost": 1024 if keep_idle else -1,
            "forwardingTimeouts": {"dialTimeout": "5s", "idleConnTimeout": "60s"},
        },
    }


def _write_dynamic(path: Path, in_flight: int | None, endpoints: Sequence[str]) -> None:
    servers = [{"url": f"http://{endpoint}"} for endpoint in endpoints]
    router: dict[str, Any] = {"rule": "PathPrefix(`/`)", "service": "endpoints", "entryPoints": ["lab"]}
    http: dict[str, Any] = {
        "routers": {"lab": router},
        "services": {"endpoints": {"loadBalancer": {"servers": servers, "passHostHeader": True}}},
    }
    if in_flight is not None:
        # By the client's address, like the annotations of its first version.
        limit = {"amount": in_flight, "sourceCriterion": {"ipStrategy": {"depth": 0}}}
        http["middlewares"] = {"limit": {"inFlightReq": limit}}
        router["middlewares"] = ["limit"]
    replace_file(path, json.dumps({"http": http}, indent=1))
