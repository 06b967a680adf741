"""Training loads for the profile-guided build of `scripts/release`.

The compiler treats code that the training does not execute as cold, so every protocol on both sides, and every path of
a body, has a load.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import certificate
from lab.balancers import BalancerTask, Placement, sheave
from lab.child import ChildFailed
from lab.load import LoadGenerator, LoadReport, Request
from lab.paths import MissingRequirement, build

# The compiler uses relative counts, so one second is enough.
SECONDS = 1.0
WARMUP_SECONDS = 0.1

GET = Request()
POST = Request(method="POST", body_bytes=1024)
CALL = Request(method="POST", path="/lab.Echo/Say/b/100", body_bytes=100, grpc=True)
# One of many routes.
ROUTED = Request(host="h43.lab.example", path="/p57/b/100")
LARGE = Request(path="/b/144384", answer_bytes=144384)


@dataclass(frozen=True)
class Training:
    """One Sheave instance and its loads."""

    name: str
    task: dict[str, Any]
    # Arguments of `LoadGenerator.load`.
    loads: list[dict[str, Any]]
    # Arguments of `LoadGenerator.handshakes`.
    handshakes: list[dict[str, Any]] = field(default_factory=list)
    tls: bool = False


TRAININGS = [
    Training(
        "HTTP/1.1",
        {},
        [
            {"request": GET, "connections": 64},
            {"request": GET, "connections": 512},
            {"request": POST, "connections": 64},
            {"request": Request(path="/b/65536", answer_bytes=65536), "connections": 64},
            {"request": Request(path="/b/1048576", answer_bytes=1048576), "connections": 16},
            {"request": Request(method="POST", body_bytes=65536), "connections": 64},
            {"request": Request(close=True), "connections": 64},
            {"request": GET, "connections": 8, "streams": 32},
        ],
    ),
    Training(
        "a cap and a queue",
        {"cap": 4},
        [{"request": GET, "connections": 64}, {"request": POST, "connections": 64}],
    ),
    Training("many routes", {"routes": 10000}, [{"request": ROUTED, "connections": 64}]),
    Training(
        "HTTP/2 to endpoints",
        {"endpoint_protocol": "http2"},
        [{"request": GET, "connections": 64}, {"request": GET, "connections": 8, "streams": 32}],
    ),
    Training("gRPC", {"endpoint_protocol": "grpc"}, [{"request": CALL, "connections": 8, "streams": 32}]),
    Training(
        "TLS and HTTP/3",
        {"http3": True},
        [
            {"request": GET, "connections": 10, "streams": 32, "http3": True},
            {"request": GET, "connections": 32, "streams": 1, "http3": True},
            {"request": LARGE, "connections": 10, "streams": 8, "http3": True},
        ],
        [
            {"resume": False, "connections": 16},
            {"resume": True, "connections": 16},
            {"resume": False, "connections": 16, "http3": True},
        ],
        tls=True,
    ),
]


def main() -> int:
    try:
        build("sheave", "loadgen")
        for training in TRAININGS:
            train(training, SECONDS)
    except (MissingRequirement, ChildFailed) as error:
        print(f"training: {error}", file=sys.stderr)
        return 1
    return 0


def train(training: Training, seconds: float) -> None:
    """Runs the loads of one training; raises on the first failed request, because the profile would be wrong."""
    cpus = sorted(os.sched_getaffinity(0))
    extent = {"warmup_seconds": WARMUP_SECONDS, "seconds": seconds}
    with tempfile.TemporaryDirectory(prefix="sheave-training-") as name, ExitStack() as running:
        folder = Path(name)
        own = certificate.make(folder) if training.tls else None
        load = running.enter_context(LoadGenerator(folder / "loadgen.log", cpus=cpus[-1:], endpoints=4))
        task = BalancerTask(endpoints=load.endpoints, certificate=own, **training.task)
        instance = running.enter_context(sheave.start(task, Placement.pinned(folder, cpus[:1])))
        for options in training.loads:
            _check_report(training, options, load.load(instance.address, **extent, **options))
        for options in training.handshakes:
            report = load.handshakes(instance.address, host=certificate.HOST, ask=False, **extent, **options)
            _check_report(training, options, report)


def _check_report(training: Training, options: dict[str, Any], report: LoadReport) -> None:
    arguments = dict(options)
    request = arguments.pop("request", None)
    what = f"{request.method} {request.path}" if request else "handshakes"
    description = f"{training.name}: {what}, " + ", ".join(f"{name} {value}" for name, value in arguments.items())
    if report.errors or not report.requests:
        raise ChildFailed(
            f"{description}: {report.errors} failed of {report.requests}, the first one: {report.first_error}"
        )
    print(f"{description}: {report.requests}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
