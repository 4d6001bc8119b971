"""Hosts as processes on private database servers, and a cluster of them with a ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Self

from foqs.config.schema import ZookeeperSection
from foqs.shardmgr.controller import moving
from foqs.shardmgr.facts import Facts, Session, ShardFact
from foqs.shardmgr.operate import Action, Assign, PutShard
from foqs.store.maintenance import create_schema
from foqs.zk.client import ZkFactStore
from foqs.zk.protocol import Done, FactStore, ZkConflict, ZkError, carry_out
from foqs_lab.servers import SqlEndpoint, SqliteFiles, ZookeeperServer
from foqs_lab.servers.process import Restartable, ServerProcess, free_port, wait_until

_START_MS = 60_000
_STOP_MS = 90_000  # a host takes twice its grace at most, and some seconds to close
_LISTENING = "foqs listening on "
_TIMES = {"item": "enqueued_at", "ready": "deliver_after", "timer": "due", "expiry": "at_ms", "ordered": "place"}
"""The tables that hold items, and a time in each, or a place."""
_FAULTS = re.compile(
    r"store\.mismatch|shard\.crashed|(handler|loop|thread|process|facts)\.failed|Traceback|Exception in"
)
"""What a host logs when something is wrong with itself, whatever its database does."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard's database. `server` is where it lives; `way`: the port of a relay through which hosts connect."""

    number: int
    server: SqlEndpoint | SqliteFiles
    database: str
    way: int | None = None

    @property
    def url(self) -> str:
        url = self.server.url(self.database)
        return url if self.way is None else url.replace(f":{self.server.port}/", f":{self.way}/")

    def rows(self) -> int:
        """Return the number of rows in all tables that hold items, without items that have ended and are kept."""
        counts = " + ".join(f"(SELECT COUNT(*) FROM `{table}`)" for table in _TIMES) + " - (SELECT COUNT(*) FROM done)"
        return int(self.server.query(f"SELECT {counts}", database=self.database)[0][0])

    def left(self) -> list[str]:
        """Return the first of these rows, in words: the item, and the time of the row in ms."""
        selects = (
            f"SELECT * FROM (SELECT '{table}', id, {time} FROM `{table}` LIMIT 5) AS t"
            for table, time in _TIMES.items()
        )
        rows = self.server.query(" UNION ALL ".join(selects), database=self.database)
        return [f"shard {self.number} still has {item} in {table}, at {at_ms}" for table, item, at_ms in rows]

    def items(self) -> dict[int, str]:
        """Return the topics of the items that are stored, without items that have ended and are kept."""
        sql = "SELECT item.id, topic FROM item JOIN lane ON lane.lane = item.lane WHERE id NOT IN (SELECT id FROM done)"
        return {int(item): topic.decode() for item, topic in self.server.query(sql, database=self.database)}


def make_shards(servers: Sequence[SqlEndpoint | SqliteFiles], on_each: int, name: str) -> list[Shard]:
    """Make `on_each` empty shards on each of `servers`, in databases called `name`_1, `name`_2, ..."""
    places = [server for server in servers for _ in range(on_each)]
    shards = []
    for number, server in enumerate(places, 1):
        shards.append(Shard(number, server, server.create_database(f"{name}_{number}")))
        create_schema(shards[-1].url, number)
    return shards


class HostProcess(Restartable):
    """`foqs serve` as a process: killed, paused, started again on the same port, its log in a file.

    `settings` are keys of foqs.toml by section, such as `{"host": {"confirm_ms": 500}}`. `processes` is the number of
    hosts behind that port.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[Shard],
        folder: Path,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        port: int | None = None,
        processes: int | None = None,
    ) -> None:
        self.name = name
        self.ids = [name] if processes is None else [f"{name}-{n}" for n in range(1, processes + 1)]
        self._options = [] if processes is None else ["--processes", str(processes)]
        self.port = port or free_port(above=processes or 0)
        self.admin_port = free_port()
        self.config = folder / f"{name}.toml"
        server = {"id": name, **(settings or {}).get("server", {})}
        # Processes pick their admin ports, as on port 0: the tests do not use them.
        admin = {"port": self.admin_port if processes is None else 0, **(settings or {}).get("admin", {})}
        logged = {"level": "debug", **(settings or {}).get("log", {})}  # the counters, at the end
        self.config.write_text(toml({**(settings or {}), "log": logged, "server": server, "admin": admin}, shards))
        self.log = folder / f"{name}.log"
        self.log.touch()

    def launch(self, *, take_over: bool = False) -> None:
        """Start it, and do not wait."""
        self._begun = self.log.stat().st_size
        argv = [sys.executable, "-m", "foqs", "serve", "--config", str(self.config), "--port", str(self.port)]
        argv += [*self._options, *(["--take-over"] if take_over else [])]
        self._process = ServerProcess(argv, log=self.log)

    def start(self, *, take_over: bool = False) -> None:
        """Start it. Return when it serves."""
        self.launch(take_over=take_over)
        self.wait_listening()

    def wait_listening(self) -> None:
        self.wait_for(_LISTENING)

    def wait_for(self, text: str, *, timeout_ms: int = _START_MS, times: int = 1) -> None:
        """Wait until the log of this start holds `text`, `times` times. Raises TimeoutError, or RuntimeError."""
        process = self._started()
        found = wait_until(lambda: not process.alive or self.said(text) >= times, timeout_ms=timeout_ms)
        if self.said(text) >= times:
            return
        late = TimeoutError(f"{self.name} did not log {text!r} within {timeout_ms} ms")
        error = RuntimeError(f"{self.name} ended") if found else late
        error.add_note(process.log_tail())
        raise error

    def said(self, text: str) -> int:
        """Return the number of times that its log holds `text` since the last start."""
        with self.log.open("rb") as log:
            log.seek(self._begun)
            return log.read().count(text.encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, and do not wait. Does nothing to a process that is gone."""
        self._started().signal(number)

    def stop(self) -> int | None:
        """Send SIGTERM, wait, and return the exit code; None if it was not started."""
        return self._process.stop(grace_ms=_STOP_MS * len(self.ids)) if self._process is not None else None

    def faults(self) -> list[str]:
        """Return the lines of the whole log that no host should write, whatever its database does."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if _FAULTS.search(line)]

    def lines(self, text: str) -> list[str]:
        """Return the lines of the whole log that hold `text`."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if text in line]

    def counted(self, counter: str) -> int:
        """Return a counter that the host logged when it stopped. Raises ValueError if it did not."""
        found = re.findall(rf"host\.counters.*\b{counter}=(\d+)", self.log.read_text(errors="replace"))
        if not found:
            raise ValueError(f"{self.name} did not log {counter}")
        return int(found[-1])

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and self._process is not None:
            error.add_note(f"the log of {self.name} ends with:\n{self._process.log_tail(40)}")
        self.stop()


def toml(settings: Mapping[str, Mapping[str, object]], shards: Sequence[Shard] = ()) -> str:
    """Return a foqs.toml of keys by section."""
    lines = []
    for section, values in settings.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    for shard in shards:
        lines += ["[[shards]]", f"id = {shard.number}", f"url = {json.dumps(shard.url)}"]
    return "\n".join(lines) + "\n"


_CONNECT_MS = 30_000


class Registry:
    """What an operator sees and asks for. A context manager."""

    def __init__(self, config: ZookeeperSection) -> None:
        """Raises TimeoutError when ZooKeeper shows no facts in half a minute."""
        self.facts = Facts()
        self._connected = False
        self._fresh = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="registry", daemon=True)
        self._thread.start()
        self._store = ZkFactStore(config, self._loop)
        self._loop.call_soon_threadsafe(self._store.start, self._changed, self._session)
        self.wait_for(lambda _: True, timeout_ms=_CONNECT_MS)

    def change(self, ask: Callable[[FactStore, Done], None]) -> None:
        """Has `ask(store, done)` change something; returns when it is done. Raises ZkError."""
        answers: SimpleQueue[ZkError | None] = SimpleQueue()
        self._loop.call_soon_threadsafe(ask, self._store, answers.put)
        error = answers.get()
        if error is not None:
            raise error

    def carry_out(self, action: Action) -> None:
        """Make a change, and return when it is done. Raises ZkError."""
        self.change(partial(carry_out, action))

    def wait_for(self, reached: Callable[[Facts], object], *, timeout_ms: int = 30_000) -> Facts:
        """The facts as soon as they are so, and were read since the last connection to ZooKeeper was made: older ones
        may say of a cluster that it is as it was. Raises TimeoutError."""
        found: list[Facts] = []

        def is_so() -> bool:
            # In this order: facts read before `_fresh` may come from an earlier connection.
            fresh = self._fresh
            found[:] = [self.facts]
            return fresh and bool(reached(found[0]))

        if not wait_until(is_so, timeout_ms=timeout_ms):
            raise TimeoutError(f"the expected facts did not arrive within {timeout_ms} ms: {self.facts}")
        return found[0]

    def close(self) -> None:
        """May be called twice."""
        if self._loop.is_closed():
            return
        closed = threading.Event()
        self._loop.call_soon_threadsafe(self._store.close, closed.set)
        closed.wait()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _changed(self, facts: Facts) -> None:
        self.facts = facts
        self._fresh = self._connected  # facts read earlier may arrive after the connection was lost

    def _session(self, session: Session) -> None:
        self._connected, self._fresh = session is Session.CONNECTED, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


ROOT = "/foqs"
Settings = Mapping[str, Mapping[str, object]]


class LocalCluster:
    """`settings` are keys of foqs.toml by section, of all hosts; keys of `zookeeper` also count for observers."""

    def __init__(
        self, zookeeper: ZookeeperServer, shards: Sequence[Shard], folder: Path, settings: Settings | None = None
    ) -> None:
        """Tells ZooKeeper of the shards; starts no host yet."""
        self.zookeeper = zookeeper
        self.shards = list(shards)
        self.hosts: dict[str, HostProcess] = {}
        self._folder = folder
        self._settings = {section: dict(keys) for section, keys in (settings or {}).items()}
        self._settings.setdefault("zookeeper", {}).update(hosts=zookeeper.hosts, root=ROOT)
        self.config = folder / "foqs.toml"  # an operator's
        self.config.write_text(toml(self._settings))
        self.registry = Registry(self.section)
        for shard in self.shards:
            self.registry.carry_out(PutShard(ShardFact(shard.number, shard.url), None))

    @property
    def section(self) -> ZookeeperSection:
        return ZookeeperSection.model_validate(self._settings["zookeeper"])

    def add(
        self, name: str, port: int | None = None, settings: Settings | None = None, processes: int | None = None
    ) -> None:
        """A host that is not started, with settings of its own. `processes` hosts are called `name`-1, `name`-2, ..."""
        merged = {section: {**keys, **(settings or {}).get(section, {})} for section, keys in self._settings.items()}
        for section, keys in (settings or {}).items():
            merged.setdefault(section, dict(keys))
        self.hosts[name] = HostProcess(name, (), self._folder, merged, port, processes)

    def start(self, *names: str) -> None:
        """Starts hosts at the same time, new ones or such as were stopped or killed; returns when they listen."""
        for name in names:
            if name not in self.hosts:
                self.add(name)
            self.hosts[name].launch()
        for name in names:
            self.hosts[name].wait_listening()

    def settled(self, *names: str, timeout_ms: int = 60_000) -> Facts:
        """When every shard is served by the living host that it is assigned to, and those hosts are `names` (by default
        all that run). Raises TimeoutError."""
        wanted = set(names or (one for host in self.hosts.values() if host.alive for one in host.ids))
        return self.registry.wait_for(partial(_settled, wanted, len(self.shards)), timeout_ms=timeout_ms)

    def place(self, hosts: Mapping[int, str]) -> Facts:
        """Move each shard to the host in `hosts` and wait for it. The next round of balancing may undo it."""
        facts = self.settled()
        while facts.assignment.hosts != hosts:
            version = facts.assignment.version
            with suppress(ZkConflict):  # the controller was faster
                self.registry.carry_out(Assign(hosts, version))
            self.registry.wait_for(lambda facts, version=version: facts.assignment.version > version)  # type: ignore[misc]
            # A controller that does not know a host yet moves the shards away that are assigned to it.
            facts = self.settled()
        return facts

    def stop(self) -> None:
        """Hosts one after the other, then the rest. May be called twice."""
        for host in self.hosts.values():
            host.stop()
        self.registry.close()


def _settled(wanted: set[str], shards: int, facts: Facts) -> bool:
    return (
        facts.hosts.keys() == wanted
        and len(facts.assignment.hosts) == shards
        and set(facts.assignment.hosts.values()) <= wanted
        and not moving(facts)
    )


@contextmanager
def local_cluster(shards: Sequence[Shard], folder: Path, settings: Settings | None = None) -> Iterator[LocalCluster]:
    """With a ZooKeeper of its own; all is ended at the end."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZookeeperServer())
        cluster = LocalCluster(zookeeper, shards, folder, settings)
        stack.callback(cluster.stop)
        yield cluster
