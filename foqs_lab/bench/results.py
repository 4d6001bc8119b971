"""Results of items: how soon a caller that waits gets one, and how soon kept items are gone after their time."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from queue import SimpleQueue
from statistics import quantiles
from typing import Any

from rich.console import Console

from foqs.client import Client, Item
from foqs_lab.bench import load
from foqs_lab.bench.clients import SHAPES
from foqs_lab.bench.kinds import SETTINGS, Kind, keeping, topic_of
from foqs_lab.bench.load import Load
from foqs_lab.bench.machine import table
from foqs_lab.bench.rig import Rig

_WAIT_MS = 60_000
_PATIENCE_S = 2 * _WAIT_MS / 1_000
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Results:
    """`gone_s`: from the last ack of `items` until none of them is kept, of which `keep_ms` is the policy's. `wake_ms`:
    from the ack of an item to its result at the caller that waits, in order."""

    items: int
    keep_ms: int
    gone_s: float
    wake_ms: list[float]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def show(self, console: Console) -> None:
        shown = table("foqs-lab bench results", "figure", "value")
        shown.add_row(
            f"{self.items:,} items kept for {self.keep_ms / 1_000:g} s are gone after", f"{self.gone_s:.1f} s"
        )
        for percent in (50, 99):
            cut = quantiles(self.wake_ms, n=100)[percent - 1]
            shown.add_row(f"result at the caller after the ack, p{percent}", f"{cut:.2f} ms")
        console.print(shown)


def measure(rig: Rig, items: int, keep_ms: int, callers: int, rounds: int, step: Callable[[str], None]) -> Results:
    """Raises TimeoutError if items are still kept a minute after their time."""
    rig.start_host()
    address = f"127.0.0.1:{rig.port}"
    with Client(address, SETTINGS.ns, timeout_ms=60_000, pool_size=0) as client:
        client.put_settings(keeping(keep_ms))
        step(f"{callers} callers wait for {rounds} results each")
        wake_ms = _wakes(client, callers, rounds)
        step(f"{items:,} items end")
        topic = topic_of(Kind.KEPT)
        shape = replace(SHAPES["cycle"], items=items)
        part = Load(rig.port, topic, items, shape.producers, shape.batch, seed=1, payload_bytes=shape.payload_bytes)
        with ThreadPoolExecutor(2) as threads:
            for running in [threads.submit(work, part) for work in (load.produce, load.consume)]:
                running.result()
        ended_s = time.monotonic()
        step(f"they are kept for {keep_ms / 1_000:g} s")
        while client.topic_stats(topic).completed:
            if time.monotonic() > ended_s + keep_ms / 1_000 + 60:
                raise TimeoutError("the items are still kept a minute after their time")
            time.sleep(_LOOK_S)
        return Results(items, keep_ms, time.monotonic() - ended_s, wake_ms)


def _wakes(client: Client, callers: int, rounds: int) -> list[float]:
    """Return the sorted times from acks to results. Each caller has one item at a time; one worker acks them all."""
    acked_s: dict[int, float] = {}
    left: SimpleQueue[Item] = SimpleQueue()
    topic = topic_of(Kind.KEPT)  # a caller that asks after the ack gets the result, too

    def wait_for(_: int) -> list[float]:
        took: list[float] = []
        for _ in range(rounds):
            item_id = client.enqueue(topic, b"x")
            client.get_result(item_id, wait_ms=_WAIT_MS)
            took.append((time.monotonic() - acked_s[item_id]) * 1_000)
        return took

    def work() -> None:
        for _ in range(callers * rounds):
            item = left.get(timeout=_PATIENCE_S)
            acked_s[item.id] = time.monotonic()
            client.ack(item, result=b"done")

    def take() -> None:
        for _ in range(callers * rounds):
            (item,) = client.dequeue(topic, wait_ms=_WAIT_MS)
            left.put(item)

    with ThreadPoolExecutor(callers + 2) as threads:
        parts = [threads.submit(take), threads.submit(work)]
        took = [one for each in threads.map(wait_for, range(callers)) for one in each]
        for part in parts:
            part.result()
    return sorted(took)
