"""A task of procrastinate. Its tables are made before the first backlog is stored."""

from __future__ import annotations

import os
import sys

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from foqs_lab.bench.noop.tally import completed

_REQUEST = 500
_URL = os.environ["FOQS_BENCH_URL"]

app = App(connector=PsycopgConnector(conninfo=_URL))


async def _coroutine(number: int) -> None:
    completed()


coroutine = app.task(name="coroutine", queue=os.environ["FOQS_BENCH_QUEUE"])(_coroutine)


def main(items: int) -> None:
    with app.replace_connector(SyncPsycopgConnector(conninfo=_URL)) as storing, storing.open():
        if not storing.check_connection():
            storing.schema_manager.apply_schema()
        for first in range(0, items, _REQUEST):
            coroutine.batch_defer(*[{"number": number} for number in range(first, min(items, first + _REQUEST))])


if __name__ == "__main__":
    main(int(sys.argv[1]))
