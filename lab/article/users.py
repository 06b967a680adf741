"""The article's Locust users. What happens to them is written to standard output, a line of JSON each."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any, final

import gevent
import locust


class DesynchronisedUser(locust.FastHttpUser):
    """Users that start together stay together: an application that takes a second answers them in bursts."""

    abstract = True

    def on_start(self) -> None:
        _write({"joined": time.time()})
        gevent.sleep(random.random())


@final
class KeepAliveUser(DesynchronisedUser):
    """Keeps its connection, and asks again as soon as it is answered."""

    @locust.task
    def root(self) -> None:
        self.client.get("/")


@final
class ClosingUser(DesynchronisedUser):
    """Closes its connection before each request, as the article does to be balanced."""

    @locust.task
    def root(self) -> None:
        self.client.client.clientpool.close()
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
    _write(
        {
            "sent": start_time,
            "seconds": response_time / 1000,
            "replica": None if failed else response.json()["hostname"],
            "failure": str(exception or response.status_code) if failed else None,
        }
    )


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
