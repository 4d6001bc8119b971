"""Many single calls at a time in one process: threads with the blocking client, and tasks with the asynchronous one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import uvloop
from rich.console import Console

from foqs.client import AsyncClient, Client
from foqs_lab.bench.machine import table
from foqs_lab.bench.rig import Rig

_PAYLOAD = b"x" * 256
_THREADS = "threads"
_KINDS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@dataclass(frozen=True, slots=True)
class InFlight:
    """`rates`: enqueues a second of each round, by the kind of the client."""

    calls: int
    rates: dict[str, list[float]]

    def ratio(self, kind: str) -> float:
        """Return the median of the ratios to threads, round by round."""
        return median(one / base for one, base in zip(self.rates[kind], self.rates[_THREADS], strict=True))

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratios": {kind: self.ratio(kind) for kind in _KINDS}}

    def show(self, console: Console) -> None:
        shown = table(f"foqs-lab bench in-flight: {self.calls} calls", "client", "enqueues a second", "ratio")
        for kind, rates in self.rates.items():
            shown.add_row(kind, f"{median(rates):,.0f}", f"{self.ratio(kind):.2f}")
        console.print(shown)


def measure(rig: Rig, items: int, calls: int, rounds: int, step: Callable[[str], None]) -> InFlight:
    """Enqueue `items` in each round, `calls` at a time. The kinds alternate, each with `calls` connections."""
    rig.start_host()
    address, each = f"127.0.0.1:{rig.port}", items // calls
    rates: dict[str, list[float]] = {kind: [] for kind in (_THREADS, *_KINDS)}
    for number in range(rounds):
        step(f"round {number + 1} of {rounds}")
        rates[_THREADS].append(_of_threads(address, calls, each))
        for kind, loop in _KINDS.items():
            with asyncio.Runner(loop_factory=loop) as runner:
                rates[kind].append(runner.run(_of_tasks(address, calls, each)))
    return InFlight(calls, rates)


def _of_threads(address: str, calls: int, each: int) -> float:
    with Client(address, pool_size=calls) as client, ThreadPoolExecutor(calls) as threads:

        def work(count: int) -> None:
            for _ in range(count):
                client.enqueue(_THREADS, _PAYLOAD)

        list(threads.map(work, [2] * calls))  # the connections and threads are there
        began = time.perf_counter()
        list(threads.map(work, [each] * calls))
        return calls * each / (time.perf_counter() - began)


async def _of_tasks(address: str, calls: int, each: int) -> float:
    async with AsyncClient(address, pool_size=calls) as client:

        async def work(count: int) -> None:
            for _ in range(count):
                await client.enqueue(_THREADS, _PAYLOAD)

        await asyncio.gather(*[work(2) for _ in range(calls)])
        began = time.perf_counter()
        await asyncio.gather(*[work(each) for _ in range(calls)])
        return calls * each / (time.perf_counter() - began)
