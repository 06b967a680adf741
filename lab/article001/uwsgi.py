"""uWSGI: pods of single-threaded workers. It is compiled once and cached beside the peers."""

from __future__ import annotations

import http.client
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.paths import CACHE, MissingRequirement
from lab.testbed.pods import Application

REQUIREMENT = Path(__file__).with_name("uwsgi-requirements.txt")
FOLDER = CACHE / "peers" / "uwsgi"
PROGRAM = FOLDER / "bin" / "uwsgi"
APPLICATION = Path(__file__).with_name("app.py")
RECORD = struct.Struct("=QQ")


def prepare() -> str:
    """Compiles uWSGI if it is missing; returns its version."""
    wanted = REQUIREMENT.read_text()
    stamp = FOLDER / REQUIREMENT.name
    if not stamp.is_file() or stamp.read_text() != wanted:
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        argv += ["--upgrade", "--target", str(FOLDER), "--requirement", str(REQUIREMENT)]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            why = done.stderr.strip()[-800:]
            raise MissingRequirement(f"cannot build uWSGI; it requires a C compiler and Python's headers: {why}")
        stamp.write_text(wanted)
    return subprocess.run([PROGRAM, "--version"], check=True, capture_output=True, text=True).stdout.strip()


def application(workers: int, work: Path, busy: Path, start_seconds: float) -> Application:
    """Returns pods with `workers` workers that sleep before they start, as a stand-in for start-up work.

    Workers close a connection after each answer, without notice. uWSGI's other HTTP socket, `--http11-socket`, does the
    same for clients of HTTP/1.0 such as ab.
    """

    def command(address: str) -> Sequence[object]:
        return [*start_command(address, workers, start_seconds), "--env", f"WORK={work}", "--env", f"BUSY={busy}"]

    busy.write_bytes(bytes(RECORD.size * workers))
    return Application(command, responds)


def start_command(address: str, workers: int, start_seconds: float) -> list[object]:
    """Returns the command of a pod, without the variables of its application."""
    argv: list[object] = ["sh", "-c", f'sleep {start_seconds}; exec "$@"', "start"] if start_seconds else []
    argv += [PROGRAM, "--master", "--workers", workers, "--wsgi-file", APPLICATION, "--need-app", "--die-on-term"]
    return [*argv, "--http-socket", address, "--disable-logging"]


def responds(address: str, timeout_seconds: float) -> bool:
    """Returns true if the pod passes a probe with httpGet."""
    client = http.client.HTTPConnection(address, timeout=timeout_seconds)
    try:
        client.request("GET", "/ready", headers={"User-Agent": "kube-probe/1.31", "Connection": "close"})
        return client.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        client.close()


@dataclass(frozen=True)
class WorkerCounts:
    """Counts of all workers of a pod."""

    serving: int
    served: int


def read_busy(busy: int) -> WorkerCounts:
    """Reads the record of each worker (serving flag and count) from an open file."""
    text = os.pread(busy, 1 << 12, 0)
    records = [RECORD.unpack_from(text, at) for at in range(0, len(text), RECORD.size)]
    return WorkerCounts(sum(serving for serving, _ in records), sum(served for _, served in records))
