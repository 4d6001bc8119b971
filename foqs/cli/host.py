"""A host in the foreground: built from a configuration, run until a signal.

`foqs dev` and `foqs serve` call `run`. `python -m foqs.cli.host ID` is one of several hosts behind a port, which the
supervisor of `foqs serve --processes` starts. The module is apart from the commands because its imports take longer
than a `foqs ack`.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvloop
from sqlalchemy.engine import URL

from foqs.admin.readiness import View
from foqs.admin.server import AdminServer
from foqs.checks import host_port
from foqs.cli import logs, signals
from foqs.cli.signals import Read
from foqs.config.load import Config
from foqs.config.schema import ServerSection, ShardSection
from foqs.errors import Invalid, OtherProtocol
from foqs.folders import make_private
from foqs.server.clock import ClockSurvey
from foqs.server.cluster_node import ClusterNode
from foqs.server.marks import FileMarks
from foqs.server.node import Node
from foqs.store.passwords import placed
from foqs.store.sql import SqlStore

log = structlog.get_logger("foqs.host")

_SWITCH_S = 0.0005
GC_THRESHOLDS = (50_000, 40, 10)
"""A collection of 50,000 new objects holds the loop for 7 ms. With the defaults of Python, collections of items, which
hold no cycles, take 1/8 of the time."""
_ORDERS, _ANSWERS = 0, 1
_READ_BYTES = 64 * 1024


def dev_shards(data_dir: Path, shards: int) -> list[ShardSection]:
    """Return the shards of an embedded host: the shards in the directory, and at least `shards`."""
    try:
        make_private(data_dir)
    except OSError as error:
        raise Invalid(f"--data-dir {data_dir}: {error.strerror}") from error
    held = [int(path.stem.removeprefix("shard-")) for path in data_dir.glob("shard-*.db") if path.stem[6:].isdigit()]
    count = max([shards, *held])
    return [ShardSection(id=n, url=_file_url(data_dir.resolve() / f"shard-{n}.db")) for n in range(1, count + 1)]


def _file_url(path: Path) -> str:
    """Return the URL of a file; special characters in its path are quoted."""
    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def run(
    config: Config, read: Read | None, *, take_over: bool, ready: Callable[[str], object] = lambda address: None
) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reloads the configuration. Calls `ready(address)` when the host listens.
    Raises Invalid."""
    tasks: list[asyncio.Task[None]] = []

    def begin(host: Host) -> None:
        signals.on_stop(host.stop)
        tasks.append(signals.on_hangup(config, read, host.apply))

    def listening(host: str, port: int) -> None:
        address = host_port(host, port)
        logs.announce(f"foqs listening on {address}", address=address)
        ready(address)

    with signals.last_work():
        serve(config, begin, listening, take_over=take_over)


def serve(
    config: Config,
    begin: Callable[[Host], None],
    listening: Callable[[str, int], None],
    *,
    take_over: bool = False,
    shared_port: int | None = None,
) -> None:
    """Serve until the host is stopped.

    Calls `begin(host)` before the host starts, and `listening(host, port)` when it listens. Raises Invalid if requests
    were left unfinished, and for permanent errors, for example a port or an id that another process has.
    """
    # A thread with a result waits for the event loop to release the interpreter: by default up to 5 ms each time.
    sys.setswitchinterval(_SWITCH_S)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    logs.set_level(config.log.level)

    async def work() -> None:
        await Host(config, take_over, shared_port).run(begin, listening)

    uvloop.run(work())


class Host:
    """A host that serves on the running loop until `stop`."""

    def __init__(self, config: Config, take_over: bool, shared_port: int | None) -> None:
        self._config = config
        self._shared_port = shared_port
        self._stopped = asyncio.Event()
        self._fault: str | None = None
        _allow_files(config.server)
        logs.catch_faults(asyncio.get_running_loop())
        self._node = _node(lambda: self._config, self._fatal, take_over, shared_port)

    def stop(self) -> None:
        self._stopped.set()

    def apply(self, config: Config) -> None:
        """Take a configuration that differs in live keys only."""
        self._config = config
        _allow_files(config.server)
        self._node.reconfigure(config)

    async def run(self, begin: Callable[[Host], None], listening: Callable[[str, int], None]) -> None:
        async with _admin(self._config, self._node):
            begin(self)
            finished = await self._serve(listening)
        if self._fault is not None:
            raise Invalid(self._fault)
        if not finished:
            raise Invalid("stopped before all requests were finished: raise server.grace_ms")

    def _fatal(self, why: str) -> None:
        self._fault = self._fault or why
        self.stop()

    async def _serve(self, listening: Callable[[str, int], None]) -> bool:
        """Serve until `stop`. Return False if requests were left unfinished."""
        starting = asyncio.ensure_future(self._node.start())
        stopping = asyncio.ensure_future(self._stopped.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return await self._node.stop()
        server = self._config.server
        try:
            address = await starting
        except OSError as error:
            await self._node.stop()
            ports = server.port if self._shared_port is None else f"{server.port} and {self._shared_port}"
            raise Invalid(f"cannot listen on {host_port(server.host, ports)}: {_reason(error)}") from error
        except OtherProtocol as error:
            await self._node.stop()
            raise Invalid(error.message) from error
        listening(*address)
        await stopping
        log.info("host.stopping", grace_ms=self._config.server.grace_ms)
        return await self._node.stop()


def _allow_files(server: ServerSection) -> None:
    """Raise the limit of open files, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = server.open_files
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning("host.few_files", allowed=hard, connections=server.max_connections)
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _reason(error: OSError) -> str:
    """Return the system's text, without asyncio's repeated address. An unresolved name has an errno below 0."""
    if error.errno == errno.EADDRINUSE:
        return f"{os.strerror(error.errno)} by another process: stop it or choose another port"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)


@asynccontextmanager
async def _admin(config: Config, host: Node | ClusterNode) -> AsyncIterator[None]:
    """Keep the admin port open: from before the first shard is served until after the last one."""
    if isinstance(host, ClusterNode):
        root = config.zookeeper.root if config.zookeeper is not None else ""
        view = View(config.server.id, host.node, host.seat, root, host.round_trips, host.keeper)
    else:
        view = View(config.server.id, host, None)
    view.node.vitals.connect(view.missing, view.wanted)
    if not config.admin.enabled:
        yield
        return
    server = AdminServer(config.admin, view)
    try:
        try:
            await server.start(config.admin_port)
        except OSError as error:
            address = host_port(config.admin.host, config.admin_port)
            raise Invalid(f"admin: cannot listen on {address}: {_reason(error)}") from error
        yield
    finally:
        await server.stop()


def _node(
    current: Callable[[], Config], fatal: Callable[[str], None], take_over: bool, shared_port: int | None
) -> Node | ClusterNode:
    """Return a host of a cluster, or a host without one if the configuration names none. `current()` has the passwords
    of a lone host's shards as they are now."""
    config = current()
    timeouts = {
        "connect_timeout_s": config.store.connect_timeout_ms / 1000,
        "io_timeout_s": config.store.io_timeout_ms / 1000,
    }

    def make_store(number: int, url: str) -> SqlStore:
        return SqlStore(url, shard=number, binary_inserts=True, **timeouts)

    if config.zookeeper is not None:
        from foqs.zk.client import ZkFactStore

        facts = ZkFactStore(config.zookeeper, asyncio.get_running_loop())
        return ClusterNode(config, config.zookeeper, facts, make_store, fatal, shared_port)

    def urls() -> dict[int, str]:
        return {section.id: placed(section.url, config.store.secrets_dir) for section in current().shards}

    directory = config.store.state_dir
    marks = None if directory is None else FileMarks(directory)
    survey = ClockSurvey(
        lambda: urls().values(), asyncio.get_running_loop(), timeouts["connect_timeout_s"], timeouts["io_timeout_s"]
    )
    return Node(
        config, lambda number: make_store(number, urls()[number]), take_over=take_over, marks=marks, survey=survey
    )


def main() -> None:
    """Serve as one of several hosts behind a port.

    The input is lines of JSON, {"config": ..., "shared_port": ...}: one at the start, and one for each change of live
    keys. The host stops when its input ends: the supervisor closes it, or has died. The output is for the supervisor:
    {"listening": "host:port"} or {"refused": "why"}, a line each. The host ignores signals: a service manager sends
    them to all processes at once, and then no host would be left to take over shards.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logs.from_environment()
    orders = _Orders()
    order = orders.first()
    if order is None:
        return  # the supervisor died before it wrote the line
    config = Config(**order["config"])
    logs.configure(config.log.level, config.log.format, folds=True, process=config.server.id)

    def listening(host: str, port: int) -> None:
        _say("listening", host_port(host, port))

    try:
        serve(config, partial(orders.follow, config), listening, shared_port=order["shared_port"])
    except Invalid as error:
        _say("refused", f"process {config.server.id}: {error.message}")
        raise SystemExit(1) from None


class _Orders:
    """The configurations that the supervisor sends."""

    def __init__(self) -> None:
        self._read = b""

    def first(self) -> Any:
        """Wait for the first line; None if the input ends before."""
        while b"\n" not in self._read:
            if not self._more():
                return None
        return self._next()

    def follow(self, running: Config, host: Host) -> None:
        """Apply further lines on the event loop, and stop the host when the input ends."""
        loop = asyncio.get_running_loop()

        def take_all() -> None:
            nonlocal running
            while b"\n" in self._read:
                running = signals.take(running, Config(**self._next()["config"]), host.apply)

        def look() -> None:
            if not self._more():
                loop.remove_reader(_ORDERS)
                host.stop()
            take_all()

        take_all()
        loop.add_reader(_ORDERS, look)

    def _more(self) -> bool:
        read = os.read(_ORDERS, _READ_BYTES)
        self._read += read
        return bool(read)

    def _next(self) -> Any:
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)


def _say(what: str, text: str) -> None:
    with suppress(OSError):  # the supervisor has died, so the input ends as well
        os.write(_ANSWERS, json.dumps({what: text}).encode() + b"\n")


if __name__ == "__main__":
    main()
