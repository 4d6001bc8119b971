"""What tests of both clients do in two ways."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.client.peer import eventually

__all__ = ["eventually", "together"]


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Return the results of calls that run at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
