"""The article's Locust users. Each writes its requests to standard output as lines of JSON."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any, final

import gevent
import locust


class DesynchronisedUser(locust.FastHttpUser):
    """User with a random initial delay: without it, users that start together stay in step with the application's
    second.
    """

    abstract = True

    def on_start(self) -> None:
        _write({"joined": time.time()})
        gevent.sleep(random.random())


@final
class KeepAliveUser(DesynchronisedUser):
    """User with one persistent connection and no pause between requests."""

    @locust.task
    def root(self) -> None:
        self.client.get("/")


@final
class ClosingUser(DesynchronisedUser):
    """User that closes its connection before each request, as the article does to balance its load."""

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
