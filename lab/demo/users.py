"""The article's Locust user, with each answer written to standard output as a line of JSON."""

from __future__ import annotations

import json
import random
import sys
from typing import Any, final

import gevent
import locust


@final
class KeepAliveUser(locust.FastHttpUser):
    """Keeps its connection, and asks again as soon as it is answered."""

    def on_start(self) -> None:
        # Users that start together stay together: an application that takes a second answers them in bursts.
        gevent.sleep(random.random())

    @locust.task
    def root(self) -> None:
        self.client.get("/")


@locust.events.request.add_listener
def _report(
    start_time: float,
    response_time: float,
    response: Any,
    exception: BaseException | None,
    **_: Any,
) -> None:
    failed = exception is not None or response.status_code != 200
    line = {
        "sent": start_time,
        "seconds": response_time / 1000,
        "replica": None if failed else response.json()["hostname"],
        "failure": str(exception or response.status_code) if failed else None,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
