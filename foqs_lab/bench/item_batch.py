"""One batch of many items: the rate of its members, and how soon its callback comes after the last of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from foqs.client import Client, ItemSpec
from foqs_lab.bench import load
from foqs_lab.bench.clients import SHAPES
from foqs_lab.bench.kinds import SETTINGS, Kind, topic_of
from foqs_lab.bench.load import Load
from foqs_lab.bench.machine import table
from foqs_lab.bench.rig import Rig

_LAST, _CALLED = "last", "called"
_WAIT_MS = 5_000
_PATIENCE_S = 120.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """`callback_s`: from the answer of the ack of the last of `members` to the callback at its consumer."""

    members: int
    members_per_s: float
    callback_s: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def show(self, console: Console) -> None:
        shown = table(f"foqs-lab bench batch, {self.members:,} members", "figure", "value")
        shown.add_row("members enqueued, delivered and acked a second", f"{self.members_per_s:,.0f}")
        shown.add_row("callback after the last ack", f"{self.callback_s:.2f} s")
        console.print(shown)


def measure(rig: Rig, members: int, step: Callable[[str], None]) -> BatchFigures:
    """Raises TimeoutError if the callback does not come, or comes before the last ack."""
    rig.start_host()
    with Client(f"127.0.0.1:{rig.port}", SETTINGS.ns, timeout_ms=60_000) as client:
        batch = client.create_batch(on_success=ItemSpec(_CALLED, b""))
        client.enqueue(_LAST, b"", batch=batch)
        shape = replace(SHAPES["cycle"], items=members - 1)
        part = Load(rig.port, topic_of(Kind.BATCH), members - 1, shape.producers, shape.batch, seed=1)
        part = replace(part, payload_bytes=shape.payload_bytes, batches=[batch])
        step(f"{members:,} members")
        with ThreadPoolExecutor(2) as threads:
            producing, consuming = [threads.submit(work, part) for work in (load.produce, load.consume)]
            rate = (members - 1) / (consuming.result().ended - producing.result().began)
        client.close_batch(batch)
        _wait(lambda: client.get_batch(batch).counts.completed == members - 1, "the home does not know all members")
        step("the last member")
        (last,) = client.dequeue(_LAST, wait_ms=_WAIT_MS)
        with ThreadPoolExecutor(1) as threads:
            called = threads.submit(_called, client)
            client.ack(last)
            ended = time.monotonic()
            return BatchFigures(members, rate, called.result() - ended)


def _wait(done: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(why)
        time.sleep(_LOOK_S)


def _called(client: Client) -> float:
    """Return when the callback came."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        for item in client.dequeue(_CALLED, wait_ms=_WAIT_MS):
            at = time.monotonic()
            client.ack(item)
            return at
    raise TimeoutError("the batch did not call back")
