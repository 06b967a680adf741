"""Driver of Chromium on the client's host: opens it, loads pages and closes it, by lines of JSON.

It runs in a separate environment with Playwright and imports nothing of the lab. A load is over when the page reports
that all its round trips are; the browser itself reports the protocols.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from playwright.sync_api import BrowserContext, BrowserType, Error, sync_playwright

# The page's promise, or null after the timeout.
OUTCOME = "patience => Promise.race([window.outcome, new Promise(late => setTimeout(late, patience, null))])"
LATE = "not done"


def main() -> None:
    with sync_playwright() as playwright:
        driver = Driver(playwright.chromium)
        for line in sys.stdin:
            answer = driver.run(json.loads(line))
            print(json.dumps(answer), flush=True)
        driver.close()


class Driver:
    """Driver of one browser at a time."""

    def __init__(self, chromium: BrowserType) -> None:
        self._chromium = chromium
        self._browser: BrowserContext | None = None

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        match job.pop("do"):
            case "open":
                return self.open(**job)
            case "load":
                return self.load(**job)
            case _:
                return self.close()

    def open(self, program: str, profile: str, flags: list[str]) -> dict[str, Any]:
        """Starts a process with the given profile."""
        self._browser = self._chromium.launch_persistent_context(profile, executable_path=program, args=flags)
        return {"version": self._browser.browser.version if self._browser.browser else None}

    def load(self, url: str, timeout_ms: float) -> dict[str, Any]:
        """Loads a page in a new tab; returns the page's report or the failure."""
        assert self._browser, "the browser must be open"
        began = time.monotonic()
        tab = self._browser.new_page()
        try:
            response = tab.goto(url, wait_until="commit", timeout=timeout_ms)
            assert response, "a page of a new address must have a response"
            left = timeout_ms - 1000 * (time.monotonic() - began)
            outcome = tab.evaluate(OUTCOME, left) or {"failure": LATE}
            return outcome | {"tls": (response.security_details() or {}).get("protocol")}
        except Error as error:
            late = 1000 * (time.monotonic() - began) >= timeout_ms
            return {"failure": LATE if late else error.message.splitlines()[0]}
        finally:
            tab.close()

    def close(self) -> dict[str, Any]:
        """Ends the browser, which writes its profile to disk."""
        if self._browser:
            self._browser.close()
        self._browser = None
        return {}


if __name__ == "__main__":
    main()
