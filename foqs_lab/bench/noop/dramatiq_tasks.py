"""An actor of dramatiq, on its broker for Redis with all defaults."""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from foqs_lab.bench.noop.tally import completed

broker = RedisBroker(url=os.environ["FOQS_BENCH_URL"])
dramatiq.set_broker(broker)


def _function(number: int) -> None:
    completed()


function = dramatiq.actor(actor_name="function", queue_name=os.environ["FOQS_BENCH_QUEUE"])(_function)


def main(items: int) -> None:
    for number in range(items):
        function.send(number)


if __name__ == "__main__":
    main(int(sys.argv[1]))
