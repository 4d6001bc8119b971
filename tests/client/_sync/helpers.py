"""What tests of both clients do in two ways."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

from foqs.client import Item
from tests.client.peer import LATER, eventually

__all__ = ["eventually", "failure", "nothing", "noting", "result", "together", "waiting"]


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Return the results of calls that run at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def result(future: Future[Any]) -> Any:
    """Return the result of the future of an item."""
    return future.result(LATER)


def failure(future: Future[Any]) -> BaseException | None:
    """Return the error of the future of an item, once it has ended."""
    return future.exception(LATER)


def nothing(item: Item) -> None:
    """A handler that returns."""


def noting(seen: list[bytes]) -> Callable[[Item], None]:
    """Return a handler that notes the payloads in `seen`."""
    return lambda item: seen.append(item.payload)


def waiting(gate: Event) -> Callable[[Item], None]:
    """Return a handler that waits for the gate."""

    def wait(item: Item) -> None:
        gate.wait(LATER)

    return wait
