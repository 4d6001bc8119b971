"""The result of one check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from foqs.event_loop import on_daemon_thread

T = TypeVar("T")


class Verdict(Enum):
    """Verdicts, from the best to the worst."""

    OK = "ok"
    SKIPPED = "not checked"
    WARNING = "warning"
    WRONG = "wrong"


class Group(Enum):
    CONFIGURATION = "configuration"
    TLS = "TLS and rights"
    PORTS = "ports"
    ZOOKEEPER = "ZooKeeper"
    DATABASES = "databases"


@dataclass(frozen=True, slots=True)
class Check:
    """A check. `found` and `mend` hold no secret; `mend` (the remedy) is empty if there is no fault."""

    group: Group
    verdict: Verdict
    name: str
    found: str
    mend: str = ""


def worst(checks: Iterable[Check]) -> Verdict:
    order = list(Verdict)
    return max((check.verdict for check in checks), key=order.index, default=Verdict.OK)


async def apart(work: Callable[[], T], timeout_s: float) -> T:
    """Run blocking `work` in a daemon thread. Raises what `work` raises, and TimeoutError."""
    async with asyncio.timeout(timeout_s):
        return await on_daemon_thread(work, "doctor")


def said(error: BaseException) -> str:
    """Return the text of an error, of an OSError without number and address."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def numbers(found: Iterable[int]) -> str:
    """Return numbers as ranges: `1-3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(found):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
