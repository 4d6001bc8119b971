"""The workloads: each runs once against a host and returns figures; rounds, medians and tables are made elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import quantiles

from foqs.client import Client
from foqs_lab.bench import load
from foqs_lab.bench.callers import Caller
from foqs_lab.bench.clients import Measured, PythonClient, Run, Shape, measure
from foqs_lab.bench.load import Load
from foqs_lab.bench.raw import commit_ms
from foqs_lab.bench.rig import Rig


def _load(rig: Rig, shape: Shape, topic: str, connections: int, marks: int = 0, delay_ms: int = 0) -> Load:
    seed = time.monotonic_ns()
    return Load(
        "127.0.0.1",
        rig.port,
        topic,
        shape.items,
        connections,
        shape.batch,
        shape.payload_bytes,
        delay_ms,
        seed,
        marks,
    )


_topics = 0
_IDLE_S = 0.001
"""From a consumer's call to the enqueue it waits for: its request has arrived, and the machine does not sleep yet."""
_WARM_ROUNDS = 20


def _fresh_topic() -> str:
    global _topics  # noqa: PLW0603 - names only
    _topics += 1
    return f"t{_topics}"


def cycle(rig: Rig, shape: Shape) -> Measured:
    """Items are enqueued, dequeued and acked while producers and consumers run side by side."""
    topic = _fresh_topic()
    clients = [
        PythonClient(partial(_loading, load.produce, _load(rig, shape, topic, shape.producers))),
        PythonClient(partial(_loading, load.consume, _load(rig, shape, topic, shape.consumers))),
    ]
    return measure(clients, shape.items, rig.servers())


def _loading(work: Callable[[Load], object], part: Load) -> Run:
    def run() -> list[float]:
        work(part)
        return []

    return run


def called(rig: Rig, shape: Shape, caller: Caller) -> Measured:
    """Processes that each enqueue, dequeue and ack one item after the other, in one topic."""
    topic = _fresh_topic()
    clients = [
        PythonClient(partial(caller, rig.port, topic, part.items, shape.payload_bytes)) for part in shape.parts()
    ]
    return measure(clients, shape.items, rig.servers())


def enqueue_only(rig: Rig, shape: Shape) -> float:
    """Items a second. The items stay in the queue: `drain` takes them away."""
    return _enqueued(rig, shape, _fresh_topic())


def _enqueued(rig: Rig, shape: Shape, topic: str, delay_ms: int = 0) -> float:
    took = load.produce(_load(rig, shape, topic, shape.producers, delay_ms=delay_ms))
    return took.items / (took.ended - took.began)


@dataclass(frozen=True, slots=True)
class Drained:
    """`tenths[i]` is items a second in that tenth of the backlog; `rss_bytes` the most the host held."""

    rate: float
    tenths: list[float]
    rss_bytes: int


def drain(rig: Rig, shape: Shape) -> Drained:
    """Fill a backlog, and `shape.delayed` items an hour ahead, restart the host, and drain the backlog."""
    topic = _fresh_topic()
    if shape.delayed:
        _enqueued(rig, Shape(shape.delayed, 500, payload_bytes=shape.payload_bytes), topic, delay_ms=3_600_000)
    _enqueued(rig, Shape(shape.items, 500, payload_bytes=shape.payload_bytes), topic)
    rig.restart_host()
    took = load.consume(_load(rig, shape, topic, shape.consumers, marks=10))
    times = [took.began, *took.marks]
    tenths = [shape.items / 10 / (end - begin) for begin, end in pairwise(times)]
    return Drained(took.items / (took.ended - took.began), tenths, rig.peak_rss_bytes())


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds at p50 and p99; `commit` is one plain single-row commit on the same server."""

    commit: tuple[float, float]
    enqueue: tuple[float, float]
    delivery: tuple[float, float]


def latency(rig: Rig, rounds: int) -> Latency:
    """On an idle host: one enqueue at a time; and from an enqueue's call to its delivery at a waiting consumer."""
    commits = commit_ms(rig.urls[0], rounds)
    topic, other = _fresh_topic(), _fresh_topic()
    with Client(f"127.0.0.1:{rig.port}", "bench") as client:
        enqueues = [_timed(lambda: client.enqueue(topic, b"x" * 256)) for _ in range(rounds)]
    deliveries = _deliveries(rig.port, other, rounds)
    return Latency(_p50_p99(commits), _p50_p99(enqueues), _p50_p99(deliveries))


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def _deliveries(port: int, topic: str, rounds: int) -> list[float]:
    """Milliseconds from the call of an enqueue to the item at a consumer in another process that waits for it."""
    context = get_context("spawn")
    here, there = context.Pipe()
    consumer = context.Process(target=_consumer, args=(port, topic, rounds + _WARM_ROUNDS, there))
    consumer.start()
    there.close()
    took = []
    with Client(f"127.0.0.1:{port}", "bench") as client:
        for _ in range(rounds + _WARM_ROUNDS):
            here.recv()  # the consumer is about to ask
            time.sleep(_IDLE_S)
            began = time.monotonic()
            client.enqueue(topic, b"x" * 256)
            took.append((here.recv() - began) * 1000)
    consumer.join()
    return took[_WARM_ROUNDS:]


def _consumer(port: int, topic: str, rounds: int, reports: Connection) -> None:
    """Says when it is about to ask, and when each item arrived on the machine's monotonic clock."""
    with Client(f"127.0.0.1:{port}", "bench") as client:
        for _ in range(rounds):
            reports.send(None)
            (item,) = client.dequeue(topic, count=1, wait_ms=60_000)
            reports.send(time.monotonic())
            client.ack(item)


def _p50_p99(values: list[float]) -> tuple[float, float]:
    cuts = quantiles(values, n=100)
    return cuts[49], cuts[98]
