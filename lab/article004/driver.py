"""Chromium on the client's host, by lines of JSON: opens it, loads pages with it, closes it.

It runs in an environment of its own, which has Playwright, and knows nothing else of the lab. A load is over when the
page says that all of its round trips are; what it went by is the browser's own word.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from playwright.sync_api import BrowserContext, BrowserType, Error, sync_playwright

# The page's promise, or nothing once patience has run out.
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
    """One browser at a time."""

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
        """A new process, which knows what its profile knows."""
        self._browser = self._chromium.launch_persistent_context(profile, executable_path=program, args=flags)
        return {"version": self._browser.browser.version if self._browser.browser else None}

    def load(self, url: str, timeout_ms: float) -> dict[str, Any]:
        """A page in a tab of its own: what it says of itself, or why it has nothing to say."""
        assert self._browser, "a page is loaded by an open browser"
        began = time.monotonic()
        tab = self._browser.new_page()
        try:
            response = tab.goto(url, wait_until="commit", timeout=timeout_ms)
            assert response, "a page of another address has a response"
            left = timeout_ms - 1000 * (time.monotonic() - began)
            outcome = tab.evaluate(OUTCOME, left) or {"failure": LATE}
            return outcome | {"tls": (response.security_details() or {}).get("protocol")}
        except Error as error:
            late = 1000 * (time.monotonic() - began) >= timeout_ms
            return {"failure": LATE if late else error.message.splitlines()[0]}
        finally:
            tab.close()

    def close(self) -> dict[str, Any]:
        """Ends it, after which its profile is on disk."""
        if self._browser:
            self._browser.close()
        self._browser = None
        return {}


if __name__ == "__main__":
    main()
