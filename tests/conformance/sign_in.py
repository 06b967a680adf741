"""Signs in to an application, in a browser, and signs out again: sign_in.py BROWSER PROFILE URL

Prints what the browser has shown as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from playwright.sync_api import BrowserContext, Page, sync_playwright

PATIENCE_MS = 20_000


def main(browser: str, profile: str, url: str) -> None:
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(profile, executable_path=browser, args=["--no-sandbox"])
        context.set_default_timeout(PATIENCE_MS)
        print(json.dumps(session(context, url)))
        context.close()


def session(context: BrowserContext, url: str) -> dict[str, Any]:
    tab = context.new_page()
    application = url[: url.index("/", len("http://"))]
    tab.goto(url)
    shown: dict[str, Any] = {"first": login_page(tab)}
    tab.fill("#username", "test-user@localhost")
    tab.fill("#password", "verysecure")
    tab.click("button")
    tab.wait_for_url(url)
    shown["page"] = {"url": tab.url, "text": tab.inner_text("body")}
    shown["cookies"] = [it["name"] for it in context.cookies(application)]
    response = tab.goto(url)
    assert response, "a page has a response"
    shown["again"] = {"status": response.status, "redirected": response.request.redirected_from is not None}
    tab.goto(f"{application}/oauth2/sign_out")
    shown["signed_out"] = login_page(tab)
    shown["cookies_after"] = [it["name"] for it in context.cookies(application) if it["name"] == "_oauth2_proxy"]
    tab.goto(url)
    shown["last"] = login_page(tab)
    return shown


def login_page(tab: Page) -> str:
    """Returns the URL of the login page, to which the browser has been redirected."""
    tab.wait_for_selector("#password")
    return tab.url


if __name__ == "__main__":
    main(*sys.argv[1:])
