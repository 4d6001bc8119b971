"""A foqs.App with a coroutine and a function. `python -m` this module KIND ITEMS stores the backlog."""

from __future__ import annotations

import os
import sys

from foqs import App
from foqs.client import FoqsError
from foqs_lab.bench.noop.tally import completed

_TOPIC = os.environ["FOQS_BENCH_QUEUE"]
_REQUEST = 500

app = App.from_env()


@app.task(topic=_TOPIC)
async def coroutine(number: int) -> None:
    completed()


@app.task(topic=_TOPIC)
def function(number: int) -> None:
    completed()


def main(kind: str, items: int) -> None:
    task = app.tasks[kind]
    for first in range(0, items, _REQUEST):
        numbers = range(first, min(items, first + _REQUEST))
        for stored in app.enqueue_many([task.message(number) for number in numbers]):
            if isinstance(stored, FoqsError):
                raise stored


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
