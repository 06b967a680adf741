"""Results of the clients of a scaled deployment."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from lab.bench import Row

REFUSED = 429


def summarize(answers: Sequence[dict[str, Any]], began: float, seconds: float) -> Row:
    """Returns the columns of one load, from the lines that the clients print."""
    statuses = [answer["status"] for answer in answers]
    good = sorted(answer["seconds"] for answer in answers if answer["status"] == 200)
    refused = [answer for answer in answers if answer["status"] == REFUSED]
    last = max((answer["sent"] + answer["seconds"] for answer in refused), default=began) - began
    return {
        "requests": len(good),
        "rps": round(len(good) / seconds, 3),
        "mean_ms": round(1000 * statistics.fmean(good), 1),
        "p99_ms": round(1000 * good[int(0.99 * (len(good) - 1))], 1),
        "status_500": statuses.count(500),
        "status_502": statuses.count(502),
        "status_other": sum(status not in (0, 200, REFUSED, 500, 502) for status in statuses),
        "broken": statuses.count(0),
        "failed": sum(status not in (200, REFUSED) for status in statuses),
        "refused": len(refused),
        "last_refusal_second": round(last, 2),
    }
