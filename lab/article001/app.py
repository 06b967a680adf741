"""Application of each pod, run by uWSGI: it receives a listing, sleeps for the next service time, and answers.

WORK names the pipe of service times. BUSY names a file with one record for each worker: a serving flag and the number
of served requests. BURN is the part of each service time that is computed instead of slept, in seconds of CPU.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import uwsgi  # type: ignore[import-not-found]

WORK = os.open(os.environ["WORK"], os.O_RDWR)
BUSY = os.open(os.environ["BUSY"], os.O_WRONLY | os.O_CREAT)
BURN = float(os.environ.get("BURN", "0"))
TIME = struct.Struct("=d")
RECORD = struct.Struct("=QQ")

served = 0


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    global served
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    if environ["REQUEST_METHOD"] != "POST":
        # A probe causes no work.
        return _answer(start_response, {"ready": True})
    offset = (uwsgi.worker_id() - 1) * RECORD.size
    os.pwrite(BUSY, RECORD.pack(1, served), offset)
    _work(TIME.unpack(os.read(WORK, TIME.size))[0])
    served += 1
    os.pwrite(BUSY, RECORD.pack(0, served), offset)
    return _answer(start_response, _with_ids(json.loads(body)))


def _work(seconds: float) -> None:
    until = time.monotonic() + seconds
    computed_until = time.thread_time() + min(BURN, seconds)
    while time.thread_time() < computed_until:
        pass
    time.sleep(max(0.0, until - time.monotonic()))


def _with_ids(listing: dict[str, Any]) -> dict[str, Any]:
    """Returns the listing with ids and tags, in about as many bytes as the article's engine; ids vary in length."""
    items = [
        {"id": item["id"], "title": item["title"], "tags": item["title"].lower().split()} for item in listing["items"]
    ]
    return {"request_id": secrets.token_hex(8 + secrets.randbelow(8)), "items": items}


def _answer(start_response: Callable[..., Any], content: dict[str, Any]) -> Iterable[bytes]:
    text = json.dumps(content).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(text)))])
    return [text]
