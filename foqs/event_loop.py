"""Waits of an event loop that the library does not offer: for work that may hang, and for a state without a signal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from foqs.travel import bare

T = TypeVar("T")
_CHECK_S = 0.01


def on_daemon_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run `work` on a daemon thread: the loop waits for its own threads at its end, and the work may hang for ever."""
    made: Future[T] = Future()
    made.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            made.set_exception(bare(error))
        else:
            made.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(made)


async def until(reached: Callable[[], bool], deadline: float) -> bool:
    """Check `reached` every 10 ms. Return False at `deadline`, a time of the event loop's clock."""
    loop = asyncio.get_running_loop()
    while not reached():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_CHECK_S)
    return True
