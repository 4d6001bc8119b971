"""The workloads, and rounds of them. Each workload runs once against a host and returns figures.

Compared workloads alternate within a round, because the speed of a machine drifts. A ratio is the median of the ratios
of all rounds.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import Any

from rich.console import Console

from foqs.client import Client
from foqs_lab.bench import load
from foqs_lab.bench.clients import SHAPES, Measured, PythonClient, Run, Shape, measure
from foqs_lab.bench.load import Caller, Load
from foqs_lab.bench.machine import LOUD, OtherProcesses, marked, table
from foqs_lab.bench.rig import Rig, commit_ms, raw_bound
from foqs_lab.bench.rivals import Rival, Rivals
from foqs_lab.bench.rivals.beanstalkd import Beanstalkd


def _load(rig: Rig, shape: Shape, topic: str, connections: int, *, marks: int = 0, delay_ms: int = 0) -> Load:
    seed = time.monotonic_ns()
    return Load(rig.port, topic, shape.items, connections, shape.batch, shape.payload_bytes, delay_ms, seed, marks)


_topics = 0
_IDLE_S = 0.001
"""From a consumer's call to the enqueue it waits for: its request has arrived, and the machine does not sleep yet."""
_WARM_ROUNDS = 20


def _fresh_topic() -> str:
    global _topics  # noqa: PLW0603 - names only
    _topics += 1
    return f"t{_topics}"


def cycle(rig: Rig, shape: Shape) -> Measured:
    """Enqueue, dequeue and ack items, while producers and consumers run side by side."""
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
    """Run processes that each enqueue, dequeue and ack one item after the other, in one topic."""
    topic = _fresh_topic()
    clients = [
        PythonClient(partial(caller, rig.port, topic, part.items, shape.payload_bytes)) for part in shape.parts()
    ]
    return measure(clients, shape.items, rig.servers())


def enqueue_only(rig: Rig, shape: Shape) -> float:
    """Return items a second. The items stay in the queue."""
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


def latency(rig: Rig, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds on an idle host: of an enqueue, and from its call to the delivery at a waiting consumer.

    `commit` is one plain single-row commit on the same server.
    """
    commits = commit_ms(rig.urls[0], rounds)
    topic, other = _fresh_topic(), _fresh_topic()
    with Client(f"127.0.0.1:{rig.port}", "bench") as client:
        enqueues = [_timed(lambda: client.enqueue(topic, b"x" * 256)) for _ in range(rounds)]
    return {"commit": commits, "enqueue": enqueues, "delivery": _deliveries(rig.port, other, rounds)}


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def _deliveries(port: int, topic: str, rounds: int) -> list[float]:
    """Return the times from the call of an enqueue to the item at a consumer in another process that waits for it."""
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
    """Say when it is about to ask, and when each item arrived on the machine's monotonic clock."""
    with Client(f"127.0.0.1:{port}", "bench") as client:
        for _ in range(rounds):
            reports.send(None)
            (item,) = client.dequeue(topic, count=1, wait_ms=60_000)
            reports.send(time.monotonic())
            client.ack(item)


Step = Callable[[str], None]
"""Called with the name of the next measurement, for a progress bar."""

COMPARED = ("cycle", "single", "callers")
"""The workloads that rivals run too."""
_TITLES = {"cycle": "batches", "single": "single items", "callers": "synchronous callers"}
_STEPS = {"callers": 2, "drain": 2}


@dataclass(frozen=True, slots=True)
class Plan:
    """The shape of each workload. `limit`: measure the raw bound too."""

    rounds: int
    shapes: Mapping[str, Shape]
    limit: bool = False

    def steps(self, rivals: Rivals) -> int:
        """Return the number of measurements."""
        count = sum(_STEPS.get(name, 1) for name in self.shapes) + self.limit
        count += sum(_takes(rival, name) for rival in rivals.running for name in self.compared())
        return self.rounds * count

    def compared(self) -> list[str]:
        return [name for name in COMPARED if name in self.shapes]


@dataclass(slots=True)
class Figures:
    """All values of all rounds, by name; units in the names. `versions` and `missing` are of rivals, by name.

    `cores`: what other processes used in each round.
    """

    database: str
    version: str
    plan: dict[str, Any] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    cores: list[float] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def add_run(self, name: str, run: Measured, *, parts: bool) -> None:
        """Add the rate, the processor time (also of each part of the system) and the time of an enqueue."""
        self.add(f"{name}_items_per_s", run.items_per_s)
        self.add(f"{name}_cpu_us", sum(run.cpu_us.values()))
        for part, used_us in run.cpu_us.items() if parts else ():
            self.add(f"{name}_{part}_cpu_us", used_us)
        if run.enqueue_p50_ms is not None:
            self.add(f"{name}_enqueue_p50_ms", run.enqueue_p50_ms)

    def drop(self, prefix: str) -> None:
        self.values = {name: values for name, values in self.values.items() if not name.startswith(prefix)}

    def as_json(self) -> dict[str, Any]:
        return {
            "database": self.database,
            "version": self.version,
            "python": platform.python_version(),
            "machine": {"system": platform.platform(), "cores": os.cpu_count()},
            "plan": self.plan,
            "versions": self.versions,
            "missing": self.missing,
            "median": {name: median(values) for name, values in self.values.items()},
            "rounds": self.values,
            "cores_of_other_processes": self.cores,
        }

    def show(self, console: Console) -> None:
        """Print the spread of each figure; of each round the ratios, and the cores of other processes."""
        title = f"foqs-lab bench on {self.database} {self.version}, Python {platform.python_version()}"
        shown = table(title, "figure", "median", "min", "max", caption=LOUD)
        shown.add_column("rounds")
        for name, values in {**self.values, "cores of other processes": self.cores}.items():
            spread = (_number(name, value) for value in (median(values), min(values), max(values)))
            rounds = (
                marked(values, self.cores, partial(_number, name)) if "_over_" in name or values is self.cores else ""
            )
            shown.add_row(name, *spread, rounds)
        console.print(shown)


def measure_rounds(rig: Rig, plan: Plan, rivals: Rivals, step: Step) -> Figures:
    versions = {rival.name: rival.version for rival in rivals.running}
    figures = Figures(rig.database, rig.version, asdict(plan), versions=versions, missing=dict(rivals.missing))
    rig.start_host()
    meter = OtherProcesses()
    for _ in range(plan.rounds):
        _round(rig, plan, rivals, figures, step)
        figures.cores.append(meter.cores())
    _ratios(figures)
    return figures


def _round(rig: Rig, plan: Plan, rivals: Rivals, figures: Figures, step: Step) -> None:
    if plan.limit:
        step("raw bound")
        batches = plan.shapes.get("cycle", SHAPES["cycle"])
        figures.add("raw_items_per_s", raw_bound(rig.urls, batches.items, batches.payload_bytes))
    for workload in plan.compared():
        _foqs(rig, plan, workload, figures, step)
        for rival in list(rivals.running):
            if _takes(rival, workload):
                _rival(rival, rivals, plan, workload, figures, step)
    if "enqueue" in plan.shapes:
        step("enqueue only")
        figures.add("enqueue_items_per_s", enqueue_only(rig, plan.shapes["enqueue"]))
    if "latency" in plan.shapes:
        step("latency")
        for name, times_ms in latency(rig, plan.shapes["latency"].items).items():
            cuts = quantiles(times_ms, n=100)
            figures.add(f"{name}_p50_ms", cuts[49])
            figures.add(f"{name}_p99_ms", cuts[98])
    if "drain" in plan.shapes:
        _drain(rig, plan.shapes["drain"], figures, step)


def _foqs(rig: Rig, plan: Plan, workload: str, figures: Figures, step: Step) -> None:
    step(f"foqs, {_TITLES[workload]}")
    shape = plan.shapes[workload]
    if workload != "callers":
        figures.add_run(workload, cycle(rig, shape), parts=True)
        return
    figures.add_run(workload, called(rig, shape, load.library), parts=True)
    step("foqs, synchronous callers without the client library")
    figures.add_run("callers_lean", called(rig, shape, load.lean), parts=True)


def _takes(rival: Rival, workload: str) -> bool:
    return workload != "cycle" or rival.has_batches


def _rival(rival: Rival, rivals: Rivals, plan: Plan, workload: str, figures: Figures, step: Step) -> None:
    """Measure a rival. One that fails is left out from then on, with all of its figures."""
    step(f"{rival.title}, {_TITLES[workload]}")
    run = rival.measure_callers if workload == "callers" else rival.measure_pair
    try:
        measured = run(plan.shapes[workload])
    except RuntimeError as error:
        rivals.running.remove(rival)
        figures.missing[rival.name] = str(error)
        figures.drop(rival.name)
    else:
        figures.add_run(figure_of(rival.name, workload), measured, parts=False)


def figure_of(rival: str, workload: str) -> str:
    """Return the begin of a rival's figures. The bare name is of batches, or of single items if it has no batches."""
    bare = "single" if rival == Beanstalkd.name else "cycle"
    return rival if workload == bare else f"{rival}_{workload}"


def _drain(rig: Rig, shape: Shape, figures: Figures, step: Step) -> None:
    step(f"drain {shape.items:,}")
    plain = drain(rig, replace(shape, delayed=0))
    figures.add("drain_items_per_s", plain.rate)
    figures.add("drain_first_over_last_tenth", plain.tenths[0] / plain.tenths[-1])
    step(f"drain {shape.items:,} beside {shape.delayed:,} delayed")
    beside = drain(rig, shape)
    figures.add("drain_beside_delayed_items_per_s", beside.rate)
    figures.add("drain_beside_over_plain", beside.rate / plain.rate)
    figures.add("host_peak_rss_bytes", float(max(plain.rss_bytes, beside.rss_bytes)))


def _ratios(figures: Figures) -> None:
    pairs = [
        *((f"{name}_over_raw", f"{name}_items_per_s", "raw_items_per_s") for name in (*COMPARED, "callers_lean")),
        *(
            (f"{name}_over_{rival}", f"{name}_items_per_s", f"{figure_of(rival, workload)}_items_per_s")
            for rival in figures.versions
            for name, workload in (*zip(COMPARED, COMPARED, strict=True), ("callers_lean", "callers"))
        ),
        ("enqueue_over_commit_p50", "enqueue_p50_ms", "commit_p50_ms"),
        ("delivery_over_commit_p50", "delivery_p50_ms", "commit_p50_ms"),
        ("enqueue_p99_over_commit_p50", "enqueue_p99_ms", "commit_p50_ms"),
        ("delivery_p99_over_commit_p50", "delivery_p99_ms", "commit_p50_ms"),
    ]
    for name, over, under in pairs:
        if over in figures.values and under in figures.values:
            both = zip(figures.values[over], figures.values[under], strict=True)
            figures.values[name] = [one / other for one, other in both]


def _number(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / 1e6:,.0f} MB"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
