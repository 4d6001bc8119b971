"""Clients whose driver blocks: a thread for each connection."""

from __future__ import annotations

import threading
from collections.abc import Callable

from foqs_lab.bench.clients import Run, Shape, shares
from foqs_lab.bench.load import run_together


def in_threads(connect: Callable[[Shape, int], Run], shape: Shape, connections: int) -> Run:
    """Connect `connections` times; each runs its share of the items in a thread of its own.

    The run raises the first error of a thread.
    """
    runs = [connect(shape, share) for share in shares(shape.items, connections)]
    errors: list[Exception] = []

    def work(run: Run) -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that reports
            errors.append(error)

    def together() -> list[float]:
        run_together([threading.Thread(target=work, args=(run,), daemon=True) for run in runs])
        if errors:
            raise errors[0]
        return []

    return together
