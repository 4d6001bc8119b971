"""A worker process of the demo: `python -m foqs_lab.demo.worker HOST:PORT FOLDER`.

It measures files until SIGTERM. It writes `begin ID` to stdout when it begins an item, and `end ID` before it
acks or nacks the item. So the program that kills this process knows the leases that it still holds.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path

from foqs.client import Client, Item, Retry, Worker
from foqs_lab.demo.count import Result, measure

NAMESPACE = "demo"
FILES = "files"
RESULTS = "results"
# An item with this header fails at its first delivery; the nack leaves NACKED as the item's metadata, so it does
# not fail again.
FAILS_ONCE = {"fails": "once"}
NACKED = b"nacked once"
# An item with this header keeps its first worker at work until it is killed. So the demo always finds a worker to
# kill at work.
TAKES_LONG = {"takes": "long"}
# How soon the items of a killed worker are delivered again. The worker extends its leases while it works.
LEASE_MS = 2_000
_NACK_DELAY_MS = 200
_STOP_MS = 500
_LONG_S = 3_600


class Measurer:
    """Takes the name of a file, and sends its counts to the topic of results."""

    def __init__(self, client: Client, root: Path) -> None:
        self._client = client
        self._root = root

    def __call__(self, item: Item) -> None:
        waited_ms = max(0, round(time.time() * 1000) - item.deliver_after_ms)
        _say("begin", item)
        try:
            if item.headers == FAILS_ONCE and item.metadata is None:
                raise Retry(delay_ms=_NACK_DELAY_MS, metadata=NACKED)
            if item.headers == TAKES_LONG and item.attempt == 1:
                time.sleep(_LONG_S)
            self._send_result(item, waited_ms)
        finally:
            _say("end", item)

    def _send_result(self, item: Item, waited_ms: int) -> None:
        """Returns once the result is committed; only then the worker acks. See `tally` for why in this order."""
        name = os.fsdecode(item.payload)
        result = Result(
            name,
            *measure(self._root / name),
            attempt=item.attempt,
            nacked=item.metadata == NACKED,
            wait_ms=waited_ms,
        )
        self._client.enqueue(RESULTS, result.to_payload())


def main(address: str, root: str) -> None:
    warnings.simplefilter("ignore")  # the parser's, of the files' code
    with Client(address, NAMESPACE) as client:
        handler = Measurer(client, Path(root))
        Worker(client, FILES, handler, lease_ms=LEASE_MS, wait_ms=_STOP_MS).run()


def _say(word: str, item: Item) -> None:
    # Not print: one write, in the kernel's hands when it returns, so that a kill takes nothing with it.
    os.write(sys.stdout.fileno(), f"{word} {item.id}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
