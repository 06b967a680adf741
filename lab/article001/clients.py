"""Closed-loop clients: each sends a request, waits for the answer, and sends the next one.

After a 429 a client waits for Retry-After or for a fixed pause. Each answer is one line of JSON. The module uses only
the standard library, because it runs on a separate host.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import sys
import threading
import time
from pathlib import Path

TIMEOUT_SECONDS = 30


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("posted", type=Path)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--pause", type=float, help="seconds after a refusal; default: Retry-After")
    parser.add_argument("--seconds", type=float, required=True)
    wanted = parser.parse_args()
    answers: queue.SimpleQueue[dict[str, object] | None] = queue.SimpleQueue()
    end = time.time() + wanted.seconds
    body = wanted.posted.read_bytes()
    threads = [
        threading.Thread(target=_client, args=(wanted.address, body, wanted.pause, end, answers))
        for _ in range(wanted.clients)
    ]
    for thread in threads:
        thread.start()
    threading.Thread(target=lambda: ([thread.join() for thread in threads], answers.put(None))).start()
    while (answer := answers.get()) is not None:
        sys.stdout.write(json.dumps(answer) + "\n")


def _client(
    address: str, body: bytes, pause: float | None, end: float, answers: queue.SimpleQueue[dict[str, object] | None]
) -> None:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
    while (sent := time.time()) < end:
        try:
            connection.request("POST", "/listings", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            status, retry_after = response.status, response.headers.get("Retry-After")
        except (OSError, http.client.HTTPException):
            connection.close()
            status, retry_after = 0, None
        answers.put({"sent": round(sent, 4), "seconds": round(time.time() - sent, 4), "status": status})
        if status == 429:
            time.sleep(pause if pause is not None else float(retry_after or 1))
        elif status == 0:
            # Avoids a busy loop if every connection fails at once.
            time.sleep(0.1)


if __name__ == "__main__":
    main()
