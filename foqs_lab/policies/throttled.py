"""Scenarios of throttles: rates and limits on live leases, over all hosts and through kills.

The number of live leases is judged twice. By the history of the workers a lease lives from its answer until its ack is
sent or its time has ended. By the rows it lives if two reads of all shards have it, one after the other.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

from foqs.client import ThrottleStats
from foqs.client.items import ItemSpec
from foqs.ids import digest_of, hash_slot_of
from foqs_lab.policies.job_process import Jobs
from foqs_lab.policies.stage import SESSION_MS, Consumers, Delivered, Outcome, Stage, exceeded_by
from foqs_lab.servers.process import wait_until

_NEW_S = 4.0


def keyed(topic: str, keys: Sequence[str], items: int) -> Iterator[ItemSpec]:
    return (ItemSpec(topic, b"x" * 64, throttle_keys=list(keys)) for _ in range(items))


def _put(stage: Stage, throttles: Mapping[str, str]) -> None:
    """Set throttles of new keys, and wait until they may give tokens: their coordinators are new, too, and grant
    nothing for 1.5 s."""
    stage.settings({f"throttle.{key}": value for key, value in throttles.items()})
    time.sleep(_NEW_S)


def _throttle(per_second: float, burst: int | None = None) -> str:
    return json.dumps({"per_second": per_second} | ({} if burst is None else {"burst": burst}))


def _with(delivered: Sequence[Delivered], key: str) -> list[Delivered]:
    return [one for one in delivered if key in (one.item.throttle_keys or ())]


def free_items(stage: Stage) -> Outcome:
    """The items of A come first in the order of the same tenant."""
    look_s, backlog = stage.seconds(30), stage.size(100_000, 5_000)
    free = stage.size(60_000, 10_000)
    alone = _rate_of_free(stage, "alone", free, look_s)
    _put(stage, {"a": _throttle(10, 20)})
    stage.fill(keyed("mixed", ["a"], backlog))
    stage.fill(keyed("mixed", [], free))
    with Consumers(stage.clients, "mixed", 10, pace_s=0.01) as consumers:
        began_s = time.monotonic()
        time.sleep(look_s)
        until_s = time.monotonic()
    seen = consumers.between(began_s, until_s)
    times = _with(seen, "a")
    free_times = [one.at_s for one in seen if not one.item.throttle_keys]
    took_s = until_s - began_s
    figures = {
        "B over B alone": len(free_times) / took_s / alone,
        "first B, ms": 1_000 * (free_times[0] - began_s),
        "A a second": len(times) / took_s,
        "A beyond burst and rate": exceeded_by(times, 10, 20),
    }
    met = figures["B over B alone"] >= 0.95 and figures["first B, ms"] <= 100
    met = met and figures["A beyond burst and rate"] <= 0 and len(times) >= 9.5 * took_s
    title = f"A at 10 a second with {backlog:,} items waiting, B without a throttle"
    return Outcome(10, title, "B >= 0.95 of alone, first B in 100 ms; A <= 20 + 10 t, >= 9.5 t", met, figures)


def _rate_of_free(stage: Stage, topic: str, items: int, look_s: float) -> float:
    stage.fill(keyed(topic, [], items))
    with Consumers(stage.clients, topic, 10, pace_s=0.01) as consumers:
        began_s = time.monotonic()
        time.sleep(look_s)
        until_s = time.monotonic()
    return len(consumers.between(began_s, until_s)) / (until_s - began_s)


def two_keys(stage: Stage) -> Outcome:
    look_s = stage.seconds(30)
    _put(stage, {"two-a": _throttle(100), "two-b": _throttle(10)})
    stage.fill(keyed("two", ["two-a", "two-b"], int(20 * look_s)))
    stage.fill(keyed("two", ["two-a"], int(200 * look_s)))
    stage.fill(keyed("two", ["two-b"], int(20 * look_s)))
    with Consumers(stage.clients, "two", 10, pace_s=0.01) as consumers:
        began_s = time.monotonic()
        time.sleep(look_s)
        until_s = time.monotonic()
    seen = consumers.between(began_s, until_s)
    a, b = _with(seen, "two-a"), _with(seen, "two-b")
    took_s = until_s - began_s
    both = [one.at_s for one in b if len(one.item.throttle_keys or ()) == 2]
    figures = {
        "both keys a second": len(both) / took_s,
        "longest wait for both, s": max(after - before for before, after in pairwise([began_s, *both, until_s])),
        "only-a over its 90 a second": (len(a) - len(both)) / took_s / 90,
        "beyond a rate": max(exceeded_by(a, 100, 100), exceeded_by(b, 10, 10)),
    }
    met = figures["only-a over its 90 a second"] >= 0.95 and figures["longest wait for both, s"] <= 3
    title = "keys {a 100/s, b 10/s} together with items with a alone, and with b alone"
    bar = "both <= 10/s, and one at least in any 3 s; only-a >= 0.95 x 90/s"
    return Outcome(11, title, bar, met and figures["beyond a rate"] <= 0, figures)


def crossed_keys(stage: Stage) -> Outcome:
    look_s = stage.seconds(60, 10)
    _put(stage, {"x-a": _throttle(1), "x-b": _throttle(1)})
    for client in stage.clients:
        stage.fill(keyed("crossed", ["x-a", "x-b"], int(look_s)), client)
        stage.fill(keyed("crossed", ["x-b", "x-a"], int(look_s)), client)
    with Consumers(stage.clients, "crossed", 10) as consumers:
        began_s = time.monotonic()
        time.sleep(look_s)
        until_s = time.monotonic()
    times = _with(consumers.between(began_s, until_s), "x-a")
    share = len(times) / (until_s - began_s)
    figures = {"of the rate": share, "beyond the rate": exceeded_by(times, 1, 1)}
    title = "three hosts, items with {a, b} and {b, a}, one token a second each"
    return Outcome(12, title, ">= 0.9 of the rate", share >= 0.9 and figures["beyond the rate"] <= 0, figures)


def killed_coordinator(stage: Stage) -> Outcome:
    rate, kills = 50.0, stage.size(20, 3)
    _put(stage, {"killed": _throttle(rate, 50)})
    recovered: list[float] = []
    times: list[Delivered] = []
    settle_s = SESSION_MS / 1_000 + 3
    for _ in range(kills):
        victim = _coordinator(stage, "killed")
        others = [client for name, client in zip(stage.hosts, stage.clients, strict=True) if name != victim]
        for client in others:
            stage.fill(keyed("killed", ["killed"], int(rate * (settle_s + 8))), client)
        with ExitStack() as stack:
            consumers = stack.enter_context(Consumers(others, "killed", 10))
            time.sleep(2)
            stage.hosts[victim].kill()
            killed_s = time.monotonic()
            time.sleep(settle_s + 3)
            until_s = time.monotonic()
        seen = _with(consumers.delivered, "killed")
        times += seen
        after = [one for one in seen if killed_s + settle_s <= one.at_s < until_s]
        recovered.append(len(after) / (until_s - killed_s - settle_s) / rate)
        stage.cluster.start(victim)
        stage.cluster.settled()
    figures = {"least of the rate after": min(recovered), "beyond the rate": exceeded_by(times, rate, 50)}
    met = min(recovered) >= 0.9 and figures["beyond the rate"] <= 0
    title = f"SIGKILL of the key's coordinator, {kills} times"
    return Outcome(13, title, "rate holds; >= 0.9 of it again within session + 3 s", met, figures)


def _coordinator(stage: Stage, key: str) -> str:
    facts = stage.cluster.settled()
    slot = hash_slot_of(digest_of(stage.client.namespace, f"\1{key}"))
    return facts.assignment.hosts[facts.slots.shards[slot]]


def many_keys(stage: Stage) -> Outcome:
    keys, look_s = stage.size(2_000, 200), stage.seconds(30, 8)
    _put(stage, {"many:*": _throttle(1)})
    per_key = int(look_s * 2) + 10
    for at, client in enumerate(stage.clients):
        own = [f"many:{n}" for n in range(at, keys, len(stage.clients))]
        stage.fill((ItemSpec("many", b"x", throttle_keys=[key]) for _ in range(per_key) for key in own), client)
    with Consumers(stage.clients, "many", 100, each=2, pace_s=0.02) as consumers:
        time.sleep(5)  # bursts are spent
        began_s, used = time.monotonic(), {name: stage.processor_s(name) for name in stage.hosts}
        time.sleep(look_s)
        until_s = time.monotonic()
        busy = max((stage.processor_s(name) - used[name]) / (until_s - began_s) for name in stage.hosts)
    seen = consumers.between(began_s, until_s)
    by_key: dict[str, list[Delivered]] = {}
    for one in consumers.delivered:
        by_key.setdefault(one.item.throttle_keys[0], []).append(one)
    figures = {
        "of the rate": len(seen) / (until_s - began_s) / keys,
        "busiest host's processor": busy,
        "keys beyond their rate": sum(exceeded_by(times, 1, 1) > 0 for times in by_key.values()),
    }
    met = figures["of the rate"] >= 0.95 and not figures["keys beyond their rate"]
    title = f"{keys:,} keys by a prefix rule at one a second, three hosts"
    return Outcome(14, title, ">= 0.95 of the rate", met, figures)


LIMIT = 4
_LEASE_MS = 3_000
_LIVE = "SELECT id, lease FROM `{}`.timer WHERE lease <> 0"
_NS = 1_000_000_000


class Lease(NamedTuple):
    """One that a worker had for certain, from `from_ns` to `to_ns` of the monotonic clock."""

    item: int
    lease: int
    from_ns: int
    to_ns: int


def leases_of(lines: Iterable[str], lease_ms: int) -> list[Lease]:
    """Return the leases of a worker's history, without its last line if that is cut."""
    got: dict[tuple[int, int], tuple[int, int]] = {}
    acked: dict[tuple[int, int], int] = {}
    for line in lines:
        what, *numbers = line.split()
        item, lease, *times = map(int, numbers)
        if what == "got":
            got[item, lease] = (times[0], times[1])
        else:
            acked[item, lease] = times[0]
    return [
        Lease(*key, at_ns, max(at_ns, min(acked.get(key, 1 << 62), asked_ns + lease_ms * 1_000_000)))
        for key, (asked_ns, at_ns) in got.items()
    ]


def most_at_once(leases: Iterable[Lease]) -> int:
    """Return the largest number of leases that lived at one moment."""
    steps = sorted(step for one in leases for step in ((one.from_ns, 1), (one.to_ns, -1)))  # ends come first
    most = live = 0
    for _, change in steps:
        live += change
        most = max(most, live)
    return most


def busy_share(leases: Iterable[Lease], from_ns: int, to_ns: int, slots: int) -> float:
    """Return the part of the time of `slots` in which a worker had a lease."""
    spans = [min(one.to_ns, to_ns) - max(one.from_ns, from_ns) for one in leases]
    return sum(span for span in spans if span > 0) / ((to_ns - from_ns) * slots)


class Rows:
    """Reads the live leases of all shards again and again; `most` were live at one moment."""

    def __init__(self, stage: Stage) -> None:
        self.most = self.reads = 0
        self._shard = stage.cluster.shards[0]
        self._query = " UNION ALL ".join([_LIVE.format(shard.database) for shard in stage.cluster.shards])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        before: set[tuple[int, int]] = set()
        while not self._stop.is_set():
            rows = self._shard.server.query(self._query, database=self._shard.database)
            now = {(int(item), int(lease)) for item, lease in rows}
            self.most = max(self.most, len(now & before))
            self.reads += 1
            before = now

    def __enter__(self) -> Rows:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Workers:
    """Processes with consumers of a topic, which are killed and started again."""

    def __init__(
        self, stage: Stage, topic: str, processes: int, consumers: int, work_ms: int, *, lease_ms: int = _LEASE_MS,
        library: bool = False,
    ) -> None:  # fmt: skip
        self._stage, self._topic, self._consumers, self._work_ms = stage, topic, consumers, work_ms
        self._lease_ms, self._library, self._first = lease_ms, library, processes
        self._numbers = count(1)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.histories: list[Path] = []

    def start(self) -> None:
        history = self._stage.folder / f"{self._topic}-{next(self._numbers)}.history"
        addresses = ",".join(f"127.0.0.1:{host.port}" for host in self._stage.hosts.values())
        jobs = Jobs(
            addresses, self._stage.client.namespace, self._topic, str(history), self._consumers, self._work_ms,
            self._lease_ms, self._library,
        )  # fmt: skip
        self.histories.append(history)
        command = [sys.executable, "-m", "foqs_lab.policies.job_process", jobs.json()]
        self._processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

    def kill(self, at: int) -> None:
        """Send SIGKILL, and start another one in its place."""
        self._processes[at].send_signal(signal.SIGKILL)
        self._processes.pop(at).wait()
        self.start()

    def leases(self) -> list[list[Lease]]:
        """Return the counts of each process."""
        found = []
        for path in self.histories:
            text = path.read_text() if path.exists() else ""
            found.append(leases_of(text[: text.rfind("\n") + 1].splitlines(), self._lease_ms))
        return found

    def __enter__(self) -> Workers:
        """Start the processes, and wait until all of them began."""
        try:
            for _ in range(self._first):
                self.start()
            _wait(lambda: all(Path(f"{one}.ready").exists() for one in self.histories), 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def __len__(self) -> int:
        return len(self._processes)


def _limit(stage: Stage, key: str, timeout_ms: int = 60_000) -> None:
    stage.settings({f"throttle.{key}": json.dumps({"concurrency": LIMIT, "timeout_ms": timeout_ms})})
    time.sleep(_NEW_S)  # coordinators that are new lend nothing for 1.5 s


def kills(stage: Stage) -> Outcome:
    """Of a host, of the host that coordinates the key, or of a worker."""
    calm_s, rounds, consumers = stage.seconds(30, 8), stage.size(20, 3), stage.size(200, 20)
    _limit(stage, "gpu")
    rng = random.Random(15)
    for client in stage.clients:
        stage.fill(keyed("train", ["gpu"], 2_000), client)
    with ExitStack() as stack:
        workers = stack.enter_context(Workers(stage, "train", 8, max(1, consumers // 8), 200))
        rows = stack.enter_context(Rows(stage))
        time.sleep(3)
        from_ns = time.monotonic_ns()
        time.sleep(calm_s)
        to_ns = time.monotonic_ns()
        for kill in range(rounds):
            if kill % 3 == 2:
                workers.kill(rng.randrange(len(workers)))
                time.sleep(2)
                continue
            victim = _coordinator(stage, "gpu") if kill % 3 else rng.choice(list(stage.hosts))
            stage.hosts[victim].kill()
            time.sleep(SESSION_MS / 1_000 + 2)
            stage.cluster.start(victim)
            stage.cluster.settled()
            time.sleep(2)
    leases = [lease for of_one in workers.leases() for lease in of_one]
    after_ns = time.monotonic_ns()
    figures = {
        "most by the history": most_at_once(leases),
        "most by the rows": rows.most,
        "of 4 busy while calm": busy_share(leases, from_ns, to_ns, LIMIT),
        "of 4 busy through the kills": busy_share(leases, to_ns, after_ns, LIMIT),
        "deliveries": len(leases),
        "reads of all rows": rows.reads,
    }
    met = figures["most by the history"] <= LIMIT >= figures["most by the rows"]
    title = f"N = 4, 3 hosts, 8 shards, {consumers} consumers, {rounds} kills of hosts, coordinators and workers"
    return Outcome(15, title, "never 5; calm: >= 0.9 x 4 busy", met and figures["of 4 busy while calm"] >= 0.9, figures)


def ends_of_jobs(stage: Stage) -> Outcome:
    """A worker that is killed, and jobs that take longer than the throttle's timeout."""
    _limit(stage, "gpu", timeout_ms=1_000)
    stage.fill(keyed("killed", ["gpu"], LIMIT))
    with Workers(stage, "killed", 1, LIMIT, 60_000) as workers:
        _wait(lambda: [one.taken for one in stage.client.throttles("gpu").throttles] == [LIMIT])
        workers.kill(0)
        killed_s = time.monotonic()
        _wait(lambda: _stats(stage).reclaimed >= LIMIT, 30)
        back_s = time.monotonic() - killed_s
    reclaimed = _stats(stage).reclaimed
    before = _stats(stage).overage
    stage.fill(keyed("long", ["gpu"], 3 * LIMIT))
    with Workers(stage, "long", 1, 3 * LIMIT, 2_000) as workers, Rows(stage) as rows:
        time.sleep(8)
    leases = [lease for of_one in workers.leases() for lease in of_one]
    figures = {
        "slots back after the kill, s": back_s,
        "reclaimed": reclaimed,
        "overage": _stats(stage).overage - before,
        "most by the history": most_at_once(leases),
        "most by the rows": rows.most,
    }
    met = back_s <= _LEASE_MS / 1_000 + 1 and reclaimed >= LIMIT and figures["overage"] >= LIMIT
    met = met and figures["most by the history"] <= LIMIT >= rows.most
    bar = "slot back within lease + 1 s, reclaimed +1; overage +1, N holds"
    return Outcome(16, "a worker killed; jobs past timeout_ms", bar, met, figures)


def workers(stage: Stage) -> Outcome:
    """`Worker`s whose topic gives each process two items at a time."""
    processes, look_s = stage.size(40, 6), stage.seconds(20, 6)
    stage.settings({"topic.each": json.dumps({"per_worker": 2})})
    for client in stage.clients:
        stage.fill(keyed("each", [], 4_000), client)
    with Workers(stage, "each", processes, 5, 300, lease_ms=30_000, library=True) as made:
        time.sleep(5)
        from_ns = time.monotonic_ns()
        time.sleep(look_s)
        to_ns = time.monotonic_ns()
    each = made.leases()
    every = [lease for of_one in each for lease in of_one]
    figures = {
        "most of a process": max(most_at_once(of_one) for of_one in each),
        "most in all": most_at_once(every),
        "of 2 each busy": busy_share(every, from_ns, to_ns, 2 * processes),
    }
    met = figures["most of a process"] <= 2 and figures["most in all"] <= 2 * processes
    return Outcome(17, f"per_worker 2, {processes} processes", f"<= {2 * processes}, each <= 2", met, figures)


def database_away(stage: Stage) -> Outcome:
    """The database of one shard is away: its slots stay taken, and other shards use their slots."""
    away_s, calm_s = stage.seconds(300, 12), stage.seconds(20, 6)
    assert stage.relay is not None, "the last shard is behind a relay"
    _limit(stage, "gpu")
    for client in stage.clients:
        stage.fill(keyed("train", ["gpu"], int(60 * (away_s + calm_s))), client)
    with Workers(stage, "train", 3, 8, 200) as workers, Rows(stage) as rows:
        time.sleep(3)
        from_ns = time.monotonic_ns()
        time.sleep(calm_s)
        cut_ns = time.monotonic_ns()
        stage.relay.hold()
        stage.relay.cut()
        time.sleep(away_s)
        stage.relay.flow()
        back_ns = time.monotonic_ns()
        time.sleep(5)
    leases = [lease for of_one in workers.leases() for lease in of_one]
    later = sorted(lease.from_ns for lease in leases if cut_ns <= lease.from_ns < back_ns)
    pauses_s = [(after - before) / _NS for before, after in zip([cut_ns, *later], [*later, back_ns], strict=True)]
    held = LIMIT * (1 - busy_share(leases, cut_ns + 5 * _NS, back_ns, LIMIT))
    figures = {
        "of 4 busy before": busy_share(leases, from_ns, cut_ns, LIMIT),
        "slots not busy while it is away": held,
        "deliveries while it is away": len(later),
        "longest pause between two, s": max(pauses_s),
        "most by the history": most_at_once(leases),
        "most by the rows": rows.most,
    }
    met = figures["most by the history"] <= LIMIT >= rows.most and len(later) > away_s and max(pauses_s) < 5
    title = f"a shard's database away for {away_s:.0f} s, N = 4"
    return Outcome(18, title, "other shards keep their slots; new grants at once", met, figures)


def _stats(stage: Stage) -> ThrottleStats:
    return next(iter(stage.client.throttles("gpu").throttles))


def _wait(done: Callable[[], bool], most_s: float = 10.0) -> None:
    if not wait_until(done, timeout_ms=round(1_000 * most_s)):
        raise TimeoutError("the state did not come")
