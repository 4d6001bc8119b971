"""A host as the foreground process: built from a configuration, run until a signal.

Apart from the commands, because what it imports takes longer than a `foqs ack`.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
import uvloop
from sqlalchemy.engine import URL

from foqs.admin.server import AdminServer
from foqs.admin.view import View
from foqs.cli import logs, signals
from foqs.cli.errors import fail
from foqs.cli.reload import Apply, Read, on_hangup
from foqs.config import Config
from foqs.errors import Invalid
from foqs.host.marks import FileMarks
from foqs.host.member import Member
from foqs.host.node import Node
from foqs.sections import ServerSection, ShardSection
from foqs.store.sql import SqlStore

log = structlog.get_logger("foqs.host")

When = Callable[[Callable[[], None], Apply], None]

_SWITCH_S = 0.0005
_GC_THRESHOLDS = (200_000, 10, 10)
UNFINISHED = "stopped before everything in hand was finished: the grace was too short"


def dev_shards(data_dir: Path, shards: int) -> list[ShardSection]:
    """The shards of an embedded host: those that the directory holds already, and at least `shards`."""
    try:
        _make_private(data_dir)
    except OSError as error:
        raise Invalid(f"--data-dir {data_dir}: {error.strerror}") from error
    held = [int(path.stem.removeprefix("shard-")) for path in data_dir.glob("shard-*.db") if path.stem[6:].isdigit()]
    count = max([shards, *held])
    return [ShardSection(id=n, url=_file_url(data_dir.resolve() / f"shard-{n}.db")) for n in range(1, count + 1)]


def _make_private(folder: Path) -> None:
    """Make a missing folder, and its missing parents, for its owner alone. An existing one keeps its mode."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _file_url(path: Path) -> str:
    """With what is special in a URL quoted: a directory may be called anything."""
    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def run(config: Config, read: Read | None, *, take_over: bool) -> None:
    """Serves until SIGTERM or SIGINT; exits 0 when everything in hand was finished within the grace. SIGHUP has the
    configuration read again."""
    tasks: list[asyncio.Task[None]] = []

    def when(stop: Callable[[], None], apply: Apply) -> None:
        signals.on_stop(stop)
        tasks.append(on_hangup(config, read, apply))

    with signals.last_work():
        finished = serve(config, when, _print, take_over=take_over)
    if not finished:
        fail(UNFINISHED)


def serve(
    config: Config,
    when: When,
    tell: Callable[[str, int], None],
    *,
    take_over: bool = False,
    shared_port: int | None = None,
) -> bool:
    """Calls `when(stop, apply)` once, serves until `stop()`, and `tell(host, port)` when it listens. `apply(config)` is
    for one that differs in live keys alone. False: UNFINISHED.

    Raises Invalid for what will not pass: a port that is taken, an id that another process has.
    """
    # A worker that has its answer waits for the loop to let go of the interpreter: by default up to 5 ms a time.
    sys.setswitchinterval(_SWITCH_S)
    # The items in memory hold no cycles; by default the collector walks them all so often that it costs an eighth.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    logs.set_level(config.log.level)
    return uvloop.run(_serve(config, when, tell, take_over, shared_port))


def _print(host: str, port: int) -> None:
    logs.announce(f"foqs listening on {host}:{port}", address=f"{host}:{port}")


def _allow_files(server: ServerSection) -> None:
    """Raises the limit of open files as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = server.open_files
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning("host.few_files", allowed=hard, connections=server.max_connections)
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(
    config: Config,
    when: When,
    tell: Callable[[str, int], None],
    take_over: bool,
    shared_port: int | None,
) -> bool:
    stop = asyncio.Event()
    faults: list[str] = []

    def fatal(why: str) -> None:
        faults.append(why)
        stop.set()

    def apply(newer: Config) -> None:
        nonlocal config
        config = newer
        _allow_files(config.server)
        node.reconfigure(config)

    _allow_files(config.server)
    logs.catch_faults(asyncio.get_running_loop())
    node = _host(config, fatal, take_over, shared_port)
    async with _admin(config, node):
        when(stop.set, apply)
        clean = await _until(stop, lambda: config, node, tell, shared_port)
    if faults:
        raise Invalid(faults[0])
    return clean


async def _until(
    stop: asyncio.Event,
    running: Callable[[], Config],
    node: Node | Member,
    tell: Callable[[str, int], None],
    shared_port: int | None,
) -> bool:
    """Serves until `stop` is set."""
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return await node.stop()
    try:
        host, port = await starting
    except OSError as error:
        await node.stop()
        server = running().server
        ports = server.port if shared_port is None else f"{server.port} and {shared_port}"
        raise Invalid(f"cannot listen on {server.host}:{ports}: {_reason(error)}") from error
    tell(host, port)
    await stop.wait()
    log.info("host.stopping", grace_ms=running().server.grace_ms)
    return await node.stop()


def _reason(error: OSError) -> str:
    """The system's words for it; asyncio's repeat the address. An address that is no number has an errno below 0."""
    if error.errno == errno.EADDRINUSE:
        return f"{os.strerror(error.errno)} by another process: stop that one or choose another port"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)


@asynccontextmanager
async def _admin(config: Config, host: Node | Member) -> AsyncIterator[None]:
    """With the admin port open: from before there is anything to serve until nothing is served any more."""
    if not config.admin.enabled:
        yield
        return
    node, seat = (host.node, host.seat) if isinstance(host, Member) else (host, None)
    root = config.zookeeper.root if config.zookeeper is not None else ""
    server = AdminServer(config.admin, View(config.server.id, node, seat, root))
    try:
        try:
            await server.start(config.admin_port)
        except OSError as error:
            address = f"{config.admin.host}:{config.admin_port}"
            raise Invalid(f"admin: cannot listen on {address}: {_reason(error)}") from error
        yield
    finally:
        await server.stop()


def _host(config: Config, fatal: Callable[[str], None], take_over: bool, shared_port: int | None) -> Node | Member:
    """A host of a cluster where there is one to join, or one that is alone."""
    timeouts = {
        "connect_timeout_s": config.store.connect_timeout_ms / 1000,
        "io_timeout_s": config.store.io_timeout_ms / 1000,
    }

    def make_store(number: int, url: str) -> SqlStore:
        return SqlStore(url, shard=number, **timeouts)

    if config.zookeeper is not None:
        from foqs.zk.client import ZkFactStore

        facts = ZkFactStore(config.zookeeper, asyncio.get_running_loop())
        return Member(config, config.zookeeper, facts, make_store, fatal, shared_port)
    urls = {section.id: section.url for section in config.shards}
    directory = config.store.state_dir
    marks = None if directory is None else FileMarks(directory, urls)
    return Node(config, lambda number: make_store(number, urls[number]), take_over=take_over, marks=marks)
