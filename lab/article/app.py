"""The article's application: one route that takes a second and returns the replica's name.

All replicas run on one machine, so the name comes from the environment, where the article uses the host name. If
ARRIVALS names a file, the application writes the arrival time of each request there, one a line, except for probes.
"""

from __future__ import annotations

import os
import time
from typing import Any, final

import anyio
import pydantic
from fastapi import FastAPI


@final
class RootPayload(pydantic.BaseModel):
    hostname: str


article = FastAPI()


@article.get("/")
async def root() -> RootPayload:
    await anyio.sleep(1.0)
    return RootPayload(hostname=os.environ["REPLICA"])


@final
class ArrivalRecorder:
    """ASGI wrapper that records the arrival time before it calls the application."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not _is_probe(scope["headers"]):
            os.write(self._file, b"%.4f\n" % time.time())
        await article(scope, receive, send)


def _is_probe(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"user-agent" and value.startswith(b"kube-probe/") for name, value in headers)


app = ArrivalRecorder(os.environ["ARRIVALS"]) if "ARRIVALS" in os.environ else article
