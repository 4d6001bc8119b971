"""What a cluster costs and how long its changes take: hosts as processes on this machine, clients as threads."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from foqs.client import Client
from foqs.client.items import Item, ItemSpec, Lease
from foqs.errors import FoqsError
from foqs.ids import shard_of
from foqs.shardmgr.operate import Assign
from foqs_lab.bench.load import run_together
from foqs_lab.bench.machine import table
from foqs_lab.cluster import LocalCluster, local_cluster, make_shards
from foqs_lab.crash.clients import Wire
from foqs_lab.servers import Kind, ServerSettings, start_database_server

SHARDS, HOSTS = 8, ("a", "b", "c")
SESSION_MS = 5_000
_NAMESPACE, _TIMEOUT_MS = "bench", 30_000
_LEASE_MS = 3_600_000
_ACKERS, _STOCK, _PACE_S = 4, 400, 0.004
_BATCH, _CLIENTS, _WAIT_MS = 100, 4, 200
_AROUND_S = 0.1
_CPUCLOCK_SCHED = 2  # of Linux, in its ids of processes' clocks
PRIORITIES, MUCH = 100, 10


@dataclass
class Figures:
    """Each value is of one round. `cost`: processor time of three hosts an item, in that of one host."""

    acks_ms: list[float] = field(default_factory=list)  # of shards that were being moved
    moves_ms: list[float] = field(default_factory=list)  # from the assignment to the new owner's announcement
    takeovers_ms: list[float] = field(default_factory=list)  # beyond the session time-out
    overtaken: float = 0.0
    cost_straight: list[float] = field(default_factory=list)
    cost_anywhere: list[float] = field(default_factory=list)
    cost_batches: list[float] = field(default_factory=list)  # clients that know the routing
    cost_single: list[float] = field(default_factory=list)
    cost_balanced: list[float] = field(default_factory=list)  # single calls, each to a random host

    def as_json(self) -> dict[str, Any]:
        return vars(self)

    def show(self, console: Console) -> None:
        shown = table("foqs-lab bench cluster, 3 hosts on one machine", "what", "figure")
        acks = sorted(self.acks_ms)
        for what, figure in (
            ("processor time an item, relative to one host; requests to the owner", _median(self.cost_straight)),
            ("the same, requests to another host", _median(self.cost_anywhere)),
            ("the same, clients that know the routing, batches", _median(self.cost_batches)),
            ("the same, single calls", _median(self.cost_single)),
            ("single calls, each to a random host", _median(self.cost_balanced)),
            (f"delivered before an item more urgent by {MUCH} of {PRIORITIES}", f"{self.overtaken:.1%}"),
            ("acks to a moving shard, p50 / p99 ms", f"{_at(acks, 0.5):.1f} / {_at(acks, 0.99):.1f}"),
            ("a shard's move, ms", _median(self.moves_ms)),
            ("take-over of a dead host's shards, ms after the session time-out", _median(self.takeovers_ms)),
        ):
            shown.add_row(what, figure)
        console.print(shown)


@contextmanager
def _cluster(kind: Kind, folder: Path, *hosts: str) -> Iterator[LocalCluster]:
    settings = {"zookeeper": {"session_timeout_ms": SESSION_MS, "balance_every_ms": 3_600_000}}
    with ExitStack() as stack:
        server = stack.enter_context(start_database_server(kind, ServerSettings(buffer_pool_bytes=256 << 20)))
        folder.mkdir()
        shards = make_shards([server], SHARDS, "bench")
        cluster = stack.enter_context(local_cluster(shards, folder, settings))
        cluster.start(*hosts)
        cluster.place(_spread(cluster))
        yield cluster


def measure(kind: Kind, folder: Path, *, rounds: int, items: int, say: Callable[[str], None]) -> Figures:
    """Measure a cluster. `items` are drained in a round of cost; ten times that number by priority."""
    figures = Figures()
    with _cluster(kind, folder / "three", *HOSTS) as three, _cluster(kind, folder / "one", "a") as one:
        for number in range(rounds):
            say(f"cost {number + 1} of {rounds}")
            alone = _cost(one, items, straight=True)
            figures.cost_straight.append(_cost(three, items, straight=True) / alone)
            figures.cost_anywhere.append(_cost(three, items, straight=False) / alone)
            for batch, costs in ((_BATCH, figures.cost_batches), (1, figures.cost_single)):
                costs.append(_cost_of_routed(three, items, batch) / _cost_of_routed(one, items, batch))
            figures.cost_balanced.append(_cost_of_balanced(three, items) / _cost_of_balanced(one, items))
        say("priorities")
        figures.overtaken = overtaken(three, 10 * items)
        for number in range(2 * rounds):
            say(f"hand-over {number + 1} of {2 * rounds}")
            _hand_over(three, 1 + number % SHARDS, figures)
        for number in range(rounds):
            say(f"take-over {number + 1} of {rounds}")
            figures.takeovers_ms.append(_take_over(three, HOSTS[number % len(HOSTS)]))
    return figures


# ---------------------------------------------------------------------------------------------- cost


def _cost(cluster: LocalCluster, items: int, *, straight: bool) -> float:
    """Processor seconds of all hosts for `items` full cycles. Clients go straight when each takes and acks where it
    put; else each request goes to the next host."""
    hosts = list(cluster.hosts.values())
    began = sum(_processor_s(host.pid) for host in hosts)
    workers = []
    for n in range(6):
        wires = [Wire(host.port, _NAMESPACE, timeout_ms=_TIMEOUT_MS) for host in hosts]
        own = [wires[n % len(wires)]] if straight else wires[n % len(wires) :] + wires[: n % len(wires)]
        workers.append(threading.Thread(target=_cycles, args=(own, f"cost-{n}", items // 6)))
    run_together(workers)
    return sum(_processor_s(host.pid) for host in hosts) - began


def _cycles(wires: Sequence[Wire], topic: str, items: int) -> None:
    payload, turn = b"x" * 256, 0
    for _ in range(items // 100):
        left = 0
        while left < 100:
            outcomes = wires[turn % len(wires)].enqueue([ItemSpec(topic, payload)] * (100 - left))
            turn += 1
            left += sum(isinstance(outcome, int) for outcome in outcomes)
            if left < 100:  # a host refuses items while its databases are slow
                time.sleep(_PACE_S)
        while left:
            got = wires[turn % len(wires)].dequeue([topic], left, wait_ms=1_000, lease_ms=_LEASE_MS)
            turn += 1
            if got:
                wires[turn % len(wires)].ack(got)
                turn += 1
                left -= len(got)


def _cost_of_routed(cluster: LocalCluster, items: int, batch: int) -> float:
    """Processor seconds of all hosts for `items` full cycles by clients that know the routing: four producers and four
    consumers of one topic."""
    hosts = list(cluster.hosts.values())
    address, topic, payload = ",".join(f"127.0.0.1:{host.port}" for host in hosts), f"routed-{batch}", b"x" * 256
    requests, acked = items // (_CLIENTS * batch), list[int]()

    def produce() -> None:
        with Client(address, _NAMESPACE) as client:
            for _ in range(requests):
                if batch == 1:
                    client.enqueue(topic, payload)
                elif any(isinstance(one, FoqsError) for one in client.enqueue_many([ItemSpec(topic, payload)] * batch)):
                    raise RuntimeError("an item was not stored")

    def consume() -> None:
        with Client(address, _NAMESPACE) as client:
            while len(acked) < _CLIENTS * requests * batch:
                got = client.dequeue(topic, batch, wait_ms=_WAIT_MS, lease_ms=_LEASE_MS)
                if batch > 1:
                    client.ack_many(got)
                elif got:
                    client.ack(got[0])
                acked.extend(item.id for item in got)

    began = sum(_processor_s(host.pid) for host in hosts)
    run_together([threading.Thread(target=do) for do in (produce, consume) for _ in range(_CLIENTS)])
    return sum(_processor_s(host.pid) for host in hosts) - began


def _cost_of_balanced(cluster: LocalCluster, items: int) -> float:
    """Processor seconds of all hosts for `items` full cycles of single calls, each to a random host, as behind a load
    balancer: four producers and four consumers of one topic."""
    hosts = list(cluster.hosts.values())
    topic, requests, acked = "balanced", items // _CLIENTS, list[int]()

    def random_hosts(seed: int) -> Iterator[Wire]:
        rng, wires = random.Random(seed), [Wire(host.port, _NAMESPACE, timeout_ms=_TIMEOUT_MS) for host in hosts]
        while True:
            yield rng.choice(wires)

    def produce(seed: int) -> None:
        to = random_hosts(seed)
        for _ in range(requests):
            if isinstance(next(to).enqueue([ItemSpec(topic, b"x" * 256)])[0], FoqsError):
                raise RuntimeError("an item was not stored")

    def consume(seed: int) -> None:
        to = random_hosts(seed)
        while len(acked) < _CLIENTS * requests:
            for item in next(to).dequeue([topic], 1, wait_ms=_WAIT_MS, lease_ms=_LEASE_MS):
                next(to).ack([item])
                acked.append(item.id)

    began = sum(_processor_s(host.pid) for host in hosts)
    run_together([threading.Thread(target=do, args=(n,)) for do in (produce, consume) for n in range(_CLIENTS)])
    return sum(_processor_s(host.pid) for host in hosts) - began


def _processor_s(pid: int) -> float:
    # By its clock: /proc counts hundredths of a second, of which a small round may cost none.
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)


# ---------------------------------------------------------------------------------------------- priorities


def overtaken(cluster: LocalCluster, items: int) -> float:
    """The share of items that were delivered while one more urgent by MUCH of PRIORITIES was ready on some host."""
    rng, addresses = random.Random(1), [f"127.0.0.1:{host.port}" for host in cluster.hosts.values()]
    with Client(",".join(addresses), _NAMESPACE) as client:
        stored = 0
        while stored < items // 100 * 100:
            specs = [ItemSpec("order", b"x", priority=rng.randrange(PRIORITIES)) for _ in range(100)]
            stored += sum(isinstance(outcome, int) for outcome in client.enqueue_many(specs))
        delivered: list[tuple[float, int]] = []

        def consume() -> None:
            while len(delivered) < stored:
                got = client.dequeue("order", count=20, wait_ms=100, lease_ms=_LEASE_MS)
                at = time.monotonic()
                delivered.extend((at, item.priority) for item in got)
                client.ack_many(got)

        run_together([threading.Thread(target=consume) for _ in addresses])
    left = Counter(priority for _, priority in delivered)
    late = 0
    for _, priority in sorted(delivered, key=lambda one: one[0]):
        left[priority] -= 1
        late += any(left[urgent] for urgent in range(priority - MUCH + 1))
    return late / len(delivered)


# ---------------------------------------------------------------------------------------------- changes


def _hand_over(cluster: LocalCluster, number: int, figures: Figures) -> None:
    """Moves a shard while its items are acked through all hosts, one at a time."""
    registry, stock = cluster.registry, _stock(cluster, number)
    before = registry.facts.assignment
    target = next(name for name in HOSTS if name != before.hosts[number])
    stopping, taken = threading.Event(), [stock[n::_ACKERS] for n in range(_ACKERS)]
    acks: list[tuple[float, float]] = []

    def ack(items: Sequence[Item], wires: Sequence[Wire]) -> None:
        for at, item in enumerate(items):
            began = time.monotonic()
            (error,) = wires[at % len(wires)].ack([Lease(item.id, item.lease)])
            if error is not None:
                raise error
            acks.append((began, time.monotonic()))
            if stopping.wait(_PACE_S):
                return

    ports = [host.port for host in cluster.hosts.values()]
    wires = [[Wire(port, _NAMESPACE, timeout_ms=_TIMEOUT_MS) for port in ports] for _ in taken]
    ackers = [threading.Thread(target=ack, args=pair) for pair in zip(taken, wires, strict=True)]
    for acker in ackers:
        acker.start()
    time.sleep(_AROUND_S)
    began = time.monotonic()
    registry.carry_out(Assign({**before.hosts, number: target}, before.version))
    registry.wait_for(lambda facts: number in facts.owners and facts.owners[number].host == target)
    ended = time.monotonic()
    time.sleep(_AROUND_S)
    stopping.set()
    for acker in ackers:
        acker.join()
    figures.moves_ms.append(1_000 * (ended - began))
    figures.acks_ms += [1_000 * (end - start) for start, end in acks if end > began and start < ended]


def _stock(cluster: LocalCluster, number: int) -> list[Item]:
    """Leased items of one shard."""
    owner = cluster.hosts[cluster.registry.facts.owners[number].host]
    wire = Wire(owner.port, _NAMESPACE, timeout_ms=_TIMEOUT_MS)
    found: dict[int, list[Item]] = defaultdict(list)
    while len(found[number]) < _STOCK:
        wire.enqueue([ItemSpec("stock", b"x")] * 10)
        for item in wire.dequeue(["stock"], 10, wait_ms=1_000, lease_ms=_LEASE_MS):
            found[shard_of(item.id)].append(item)
    for shard, items in found.items():
        if shard != number:
            wire.ack(items)
    return found[number]


def _take_over(cluster: LocalCluster, victim: str) -> float:
    """Return the time from the death of a host until its shards are served, without the session time-out."""
    others = [name for name in cluster.hosts if name != victim]
    cluster.hosts[victim].kill()
    began = time.monotonic()
    cluster.settled(*others)
    took_ms = 1_000 * (time.monotonic() - began) - SESSION_MS
    cluster.start(victim)
    cluster.settled(*cluster.hosts)
    cluster.place(_spread(cluster))
    return took_ms


def _spread(cluster: LocalCluster) -> dict[int, str]:
    names = list(cluster.hosts)
    return {shard.number: names[shard.number % len(names)] for shard in cluster.shards}


def _at(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def _median(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
