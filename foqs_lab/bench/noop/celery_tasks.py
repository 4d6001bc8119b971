"""A Celery app. An item is acknowledged after its task, as every queue here does: `acks_late`."""

from __future__ import annotations

import os
import sys

from celery import Celery

from foqs_lab.bench.noop.tally import completed

app = Celery(broker=os.environ["FOQS_BENCH_URL"])
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue=os.environ["FOQS_BENCH_QUEUE"],
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


def _function(number: int) -> None:
    completed()


function = app.task(name="function")(_function)


def main(items: int) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(items):
            function.apply_async((number,), producer=producer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
