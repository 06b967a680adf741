"""The article's Locust user over HTTP/3, with Niquests, and variants over HTTP/2 and by discovery. Each writes its
requests to standard output as lines of JSON.

As in the article, no user checks certificates. Unlike the article, each request is reported once.
"""

from __future__ import annotations

import json
import random
import sys
import time
import warnings
from typing import Any, final
from urllib.parse import urlsplit

import gevent
import locust
import niquests

warnings.simplefilter("ignore")
# A saturated replica answers late.
TIMEOUT_SECONDS = 60
VERSIONS = {11: "1.1", 20: "2", 30: "3"}


class NiquestsUser(locust.User):
    """User with one persistent connection and no pause between requests."""

    abstract = True
    options: dict[str, bool] = {}

    def on_start(self) -> None:
        _write({"joined": time.time()})
        self.session = niquests.Session(multiplexed=False, **self.options)
        gevent.sleep(random.random())

    def on_stop(self) -> None:
        self.session.close()

    @locust.task
    def root(self) -> None:
        sent = time.time()
        replica = failure = version = None
        try:
            response = self.session.get(f"{self.host}/", verify=False, timeout=TIMEOUT_SECONDS)
            version = VERSIONS.get(response.http_version)
            response.raise_for_status()
            replica = response.json()["hostname"]
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        seconds = time.time() - sent
        _write({"sent": sent, "seconds": seconds, "replica": replica, "failure": failure, "version": version})


@final
class Http2User(NiquestsUser):
    options = {"disable_http1": True, "disable_http3": True}


@final
class Http3User(NiquestsUser):
    """User of HTTP/3 from the first request, like the article's."""

    options = {"disable_http1": True, "disable_http2": True}

    def on_start(self) -> None:
        super().on_start()
        url = urlsplit(self.host)
        self.session.quic_cache_layer.add_domain(url.hostname, url.port)


@final
class DiscoveringUser(NiquestsUser):
    """User that starts over TCP and follows `Alt-Svc`, as browsers do; the article did not get this to work."""


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
