"""Tasks of `foqs worker` that come by enqueues and by outboxes, while workers, relays, hosts and databases are killed:
whether each is done, each committed row is one item, and no step is done again whose checkpoint is old enough.

An application writes an order in the transaction of each call. So at the end its orders say which rows were committed,
also where the reply to a commit was lost.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import Any, NamedTuple

from sqlalchemy import Column, MetaData, String, Table, create_engine, select
from sqlalchemy.exc import DBAPIError

from foqs import App, Handle
from foqs.client import FoqsError, OutcomeUnknown
from foqs.outbox import Outbox
from foqs_lab.cluster import HostProcess, LocalCluster, Shard, local_cluster
from foqs_lab.crash import jobs
from foqs_lab.crash.schedules import addresses_of
from foqs_lab.crash.steps import Repeated, Saved, Span, Step, repeated
from foqs_lab.servers import ContainerServer, DatabaseServer

NAMESPACE = "tasks"
KINDS = ("worker", "relay", "host", "database")
_SETTINGS = {"zookeeper": {"session_timeout_ms": 5_000, "settle_ms": 1_000}}
_HOSTS, _WORKERS, _RELAYS = 3, 3, 2
_BATCH = 20
_BACKLOG = 1_000
"""Half of it is for rows alone, which take longer to come."""
_ROLLED_BACK = 0.1
_LONG = 0.03
_WITH_WORKER = 0.5
"""The share of kills of hosts and databases after which a worker is killed at once: its jobs need their checkpoints."""
_DOWN_S = 2.0
_LIMIT_S = 2_400.0
_DRAIN_S = 120.0

metadata = MetaData()
orders = Table("orders", metadata, Column("key", String(40), primary_key=True))
outboxes = {"unordered": Outbox(metadata, "shared"), "order": Outbox(metadata, "ordered")}
"""By the mode of their relays."""


@dataclass
class Seen:
    """`items`: the items that began, by the key of their call. `wanted` keys were stored for certain, `refused` ones
    certainly not; of other keys nothing is known. `rows`: the keys of committed rows."""

    wanted: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)
    items: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    done: set[int] = field(default_factory=set)
    runs: list[Step] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)

    def take(self, journal: jobs.Journal) -> None:
        for line in journal.read():
            match line:
                case ["began", at_ns, job, first, key]:
                    self.items[key].add(job)
                    self.runs.append(Step(at_ns, job, first))
                case ["saved", at_ns, job, number, asked_ns]:
                    self.saved.append(Saved(at_ns, job, number, asked_ns))
                case ["done", _, job]:
                    self.done.add(job)

    def has_done(self, count: int) -> bool:
        return len(self.done) >= count

    def unfinished(self) -> set[str]:
        """Return the keys that are not done, or have an item that is not."""
        keys = self.wanted | self.items.keys()
        return {key for key in keys if not self.items.get(key) or self.items[key] - self.done}


@dataclass
class Report:
    """`lost`: calls that were stored, or have an item, and are not done. `twice`: calls with several items. `ghosts`:
    calls that were rolled back or refused, and have an item. `excused`, `wrong`: runs that began before a confirmed
    checkpoint, by a kill within its second, and otherwise. `faults`: rows that are left, and internal errors."""

    seed: int
    tasks: int
    rows: int
    items: int
    runs: int
    continued: int
    checkpoints: int
    kills: Counter[str]
    excused: int
    wrong: list[Repeated]
    lost: list[str]
    twice: list[str]
    ghosts: list[str]
    faults: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def good(self) -> bool:
        return not (self.wrong or self.lost or self.twice or self.ghosts or self.faults)

    def __str__(self) -> str:
        kills = ", ".join(f"{what} {self.kills[what]}" for what in KINDS)
        lines = [
            f"seed {self.seed}: {self.tasks:,} tasks, {self.rows:,} of them by rows, kills: {kills}; "
            f"{self.took_s:.0f} s",
            f"{self.items:,} items, {self.runs:,} runs, {self.continued:,} of them continued at a checkpoint, "
            f"{self.checkpoints:,} confirmed checkpoints; runs before one that a kill within its second has lost: "
            f"{self.excused}",
        ]
        lines += [f"wrong: {one.step} after {one.saved}" for one in self.wrong[:10]]
        for what in ("lost", "twice", "ghosts"):
            found = getattr(self, what)
            lines += [f"{what}: {len(found)}, such as {found[:5]}"] if found else []
        return "\n  ".join([*lines, *self.faults[:10]])


def verdict(seen: Seen, outages: Sequence[Span], seed: int, kills: Counter[str]) -> Report:
    excused, wrong = repeated(seen.runs, seen.saved, outages)
    return Report(
        seed, len(seen.wanted), len(seen.rows), sum(map(len, seen.items.values())), len(seen.runs),
        sum(run.number > 0 for run in seen.runs), len(seen.saved), kills, excused, wrong,
        lost=sorted(seen.unfinished()),
        twice=sorted(key for key, items in seen.items.items() if len(items) > 1),
        ghosts=sorted(seen.refused & seen.items.keys()),
    )  # fmt: skip


def schedule(seed: int, kills: int) -> list[str]:
    """Return the kinds of processes to kill, in order, each about equally often."""
    rng = random.Random(f"{seed}/schedule")
    plan = [KINDS[number % len(KINDS)] for number in range(kills)]
    rng.shuffle(plan)
    return plan


class Call(NamedTuple):
    task: Any
    key: str
    steps: int
    step_s: float


class Producers:
    """Threads that enqueue calls, or write calls and orders in transactions, until `tasks` are stored."""

    def __init__(self, app: App, url: str, seed: int, tasks: int, seen: Seen) -> None:
        self._engine = create_engine(url, pool_pre_ping=True, pool_reset_on_return=None)
        self._app = app
        self._tasks = tasks
        self._seen = seen
        self._numbers = count(1)
        self._tried: set[str] = set()
        metadata.create_all(self._engine)
        makes = [(self._enqueue_many, _BACKLOG // 2), (self._enqueue, _BACKLOG // 2)]
        makes += [(partial(self._write, outbox), _BACKLOG) for outbox in outboxes.values()]
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed}/{number}"), *make), daemon=True)
            for number, make in enumerate(makes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def rows(self) -> list[str]:
        """Return the rows that are left in the outboxes."""
        with self._engine.connect() as connection:
            left = [row for outbox in outboxes.values() for row in connection.execute(select(outbox.table).limit(5))]
        return [f"the outbox has the row {row}" for row in left]

    def look(self) -> None:
        """Find out which rows were committed."""
        with self._engine.connect() as connection:
            self._seen.rows = set(connection.scalars(select(orders.c.key)))
        self._seen.wanted |= self._seen.rows
        self._seen.refused |= self._tried - self._seen.rows

    def _run(self, rng: random.Random, make: Callable[[random.Random, list[Call]], None], backlog: int) -> None:
        seen = self._seen
        while len(seen.wanted) < self._tasks:
            make(rng, [_call(rng, next(self._numbers)) for _ in range(rng.randint(1, _BATCH))])
            while len(seen.wanted) - len(seen.done) > backlog:
                sleep(0.02)

    def _enqueue_many(self, _: random.Random, calls: list[Call]) -> None:
        outcomes = self._app.enqueue_many([call.task.message(*call[1:]) for call in calls])
        for call, outcome in zip(calls, outcomes, strict=True):
            self._take(call, outcome)

    def _enqueue(self, _: random.Random, calls: list[Call]) -> None:
        for call in calls:
            try:
                self._take(call, call.task.enqueue(*call[1:]))
            except FoqsError as error:
                self._take(call, error)

    def _take(self, call: Call, outcome: Handle[None] | FoqsError) -> None:
        if isinstance(outcome, Handle):
            self._seen.wanted.add(call.key)
        elif not isinstance(outcome, OutcomeUnknown):
            self._seen.refused.add(call.key)

    def _write(self, outbox: Outbox, rng: random.Random, calls: list[Call]) -> None:
        keys = {call.key for call in calls}
        self._tried |= keys
        try:
            with self._engine.begin() as connection:
                connection.execute(orders.insert(), [{"key": key} for key in keys])
                for call in calls:
                    outbox.add(connection, call.task, call.key, call.steps, call.step_s)
                if rng.random() < _ROLLED_BACK:
                    raise _RolledBack
        except _RolledBack:
            return
        except DBAPIError:
            sleep(0.1)  # the database is away; `look` finds out whether it has committed
        else:
            self._seen.wanted |= keys


class _RolledBack(Exception):
    """Ends a transaction."""


def _call(rng: random.Random, number: int) -> Call:
    task = jobs.in_thread if number % 4 == 0 else jobs.in_loop
    steps, step_s = (40, 0.1) if rng.random() < _LONG else (2, 0.01)
    return Call(task, f"call {number}", steps, step_s)


class Crew:
    """Kills processes, and starts them again. `outages` are of hosts and databases."""

    def __init__(self, cluster: LocalCluster, servers: Sequence[DatabaseServer | ContainerServer], seed: int) -> None:
        self.workers: list[jobs.Command] = []
        self.relays: list[jobs.Command] = []
        self.kills: Counter[str] = Counter()
        self.outages: list[Span] = []
        self._cluster = cluster
        self._servers = servers
        self._rng = random.Random(f"{seed}/kills")

    def kill(self, what: str) -> None:
        """Return when it is there again, and the cluster serves all shards. Raises TimeoutError."""
        rng, before_ns = self._rng, monotonic_ns()
        self.kills[what] += 1
        if what == "worker":
            rng.choice(self.workers).kill_worker(rng)
        elif what == "relay":
            relay = rng.choice(self.relays)
            relay.kill()
            relay.launch()
        else:
            victim = rng.choice(self._servers if what == "database" else [*self._cluster.hosts.values()])
            victim.kill()
            killed_ns = monotonic_ns()
            if rng.random() < _WITH_WORKER:
                self.kill("worker")
            sleep(rng.uniform(0, _DOWN_S))
            if isinstance(victim, HostProcess):
                victim.start()
            else:
                victim.restart()
                killed_ns = monotonic_ns()
            self.outages.append((before_ns, killed_ns))
            self._cluster.settled()


def run_tasks(
    servers: Sequence[DatabaseServer | ContainerServer],
    shards: Sequence[Shard],
    folder: Path,
    seed: int,
    tasks: int,
    kills: int,
) -> Report:
    """Have about `tasks` tasks done through `kills` kills. `shards` are on `servers`; the application has a database on
    the last one. Logs go to `folder`. Raises TimeoutError."""
    began, seen, journal = monotonic(), Seen(), jobs.Journal(folder)

    def wait(reached: Callable[[], object], limit_s: float = _LIMIT_S) -> bool:
        deadline = monotonic() + limit_s
        while not reached() and monotonic() < deadline:
            sleep(0.1)
            seen.take(journal)
        return bool(reached())

    with ExitStack() as stack:
        cluster = stack.enter_context(local_cluster(shards, folder, _SETTINGS))
        cluster.start(*[f"host-{number + 1}" for number in range(_HOSTS)])
        cluster.settled()
        addresses = addresses_of([host.port for host in cluster.hosts.values()])
        app = stack.enter_context(App(addresses, NAMESPACE))
        app.include(jobs.app)
        url, crew = servers[-1].url(servers[-1].create_database("application")), Crew(cluster, servers, seed)
        producers = Producers(app, url, seed, tasks, seen)
        for _ in range(_WORKERS):
            crew.workers.append(jobs.worker(folder, "app", addresses, NAMESPACE, "--concurrency", "32"))
        for _ in range(_RELAYS):
            for mode, outbox in outboxes.items():
                options = (f"--{mode}", "--table", outbox.table.name, "--address", addresses, "--ns", NAMESPACE)
                crew.relays.append(jobs.Command(folder, "outbox", "relay", url, *options))
        for command in (*crew.workers, *crew.relays):
            stack.callback(command.kill)
        for number, what in enumerate(schedule(seed, kills)):
            if not wait(partial(seen.has_done, tasks * (number + 1) // (kills + 2))):
                raise TimeoutError(f"{len(seen.done)} of {tasks} tasks were done before kill {number + 1}")
            crew.kill(what)
        wait(lambda: not producers.running)
        producers.look()
        for empty in (lambda: not producers.rows(), lambda: not sum(shard.rows() for shard in shards)):
            wait(empty, _DRAIN_S)
        seen.take(journal)
        report = verdict(seen, crew.outages, seed, crew.kills)
        report.faults += producers.rows() + [row for shard in shards for row in shard.left()]
        report.faults += [line for host in cluster.hosts.values() for line in host.faults()]
        report.took_s = monotonic() - began
        return report
