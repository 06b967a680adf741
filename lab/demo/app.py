"""The article's application: one route that takes a second and says which replica answers.

All replicas of the demo run on one host, so the name that the article takes from it comes from the environment.
"""

from __future__ import annotations

import os
from typing import final

import anyio
import pydantic
from fastapi import FastAPI


@final
class RootPayload(pydantic.BaseModel):
    hostname: str


app = FastAPI()


@app.get("/")
async def root() -> RootPayload:
    await anyio.sleep(1.0)
    return RootPayload(hostname=os.environ["REPLICA"])
