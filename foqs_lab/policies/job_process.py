"""A worker process of the scenarios of limited leases: run as `python -m foqs_lab.policies.job_process`, with a JSON
object of `Jobs`' fields. It appends to its history `got ITEM LEASE ASKED_NS GOT_NS` and `acked ITEM LEASE AT_NS`: times
of the machine's monotonic clock."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from foqs.client import Client, Worker
from foqs.client.items import Item
from foqs.errors import FoqsError


@dataclass(frozen=True)
class Jobs:
    """`consumers` threads take one item at a time and work on it for `work_ms`; with `library`, they are the handlers
    of one `Worker`."""

    addresses: str
    namespace: str
    topic: str
    history: str
    consumers: int
    work_ms: int
    lease_ms: int
    library: bool = False

    def json(self) -> str:
        return json.dumps(asdict(self))


class History:
    """Each line is one write, so a process that is killed leaves whole lines."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def got(self, item: int, lease: int, asked_ns: int, at_ns: int) -> None:
        os.write(self._file, f"got {item} {lease} {asked_ns} {at_ns}\n".encode())

    def acked(self, item: int, lease: int) -> None:
        os.write(self._file, f"acked {item} {lease} {time.monotonic_ns()}\n".encode())


def consume(client: Client, jobs: Jobs, history: History) -> None:
    """Take items for ever. The process is killed at the end."""
    while True:
        asked_ns = time.monotonic_ns()
        try:
            items = client.dequeue(jobs.topic, 1, wait_ms=1_000, lease_ms=jobs.lease_ms, timeout_ms=5_000)
        except FoqsError:
            time.sleep(0.05)
            continue
        for item in items:
            history.got(item.id, item.lease, asked_ns, time.monotonic_ns())
            time.sleep(jobs.work_ms / 1_000)
            history.acked(item.id, item.lease)
            client.ack_many([item], timeout_ms=5_000)


def work(client: Client, jobs: Jobs, history: History) -> None:
    """Run a `Worker` for ever."""

    def handle(item: Item) -> None:
        now_ns = time.monotonic_ns()
        history.got(item.id, item.lease, now_ns, now_ns)
        time.sleep(jobs.work_ms / 1_000)
        history.acked(item.id, item.lease)

    Worker(client, [jobs.topic], handle, concurrency=jobs.consumers, lease_ms=jobs.lease_ms).run()


def main(text: str) -> None:
    jobs = Jobs(**json.loads(text))
    history = History(jobs.history)
    Path(f"{jobs.history}.ready").touch()
    with Client(jobs.addresses, jobs.namespace, pool_size=jobs.consumers + 2) as client:
        if jobs.library:
            work(client, jobs, history)
            return
        threads = [threading.Thread(target=consume, args=(client, jobs, history)) for _ in range(jobs.consumers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(sys.argv[1])
