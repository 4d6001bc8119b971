"""The facts of a cluster in a real ZooKeeper, through kazoo: folders that are watched, and changes in order.

kazoo's answers and events arrive in ZooKeeper's order, so the state of a name is one token: that of its read in flight,
or of the watch that this read set. An answer or event with another token is older, and ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

import structlog
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent

from foqs.config.schema import ZookeeperSection
from foqs.counters import Histogram
from foqs.errors import FoqsError
from foqs.ids import Mark, Marks
from foqs.policies.settings import Change, Changed, Settings
from foqs.shardmgr.facts import Facts, HostFact, Identity, OwnerFact, Session, ShardFact, Slots, Written
from foqs.travel import bare
from foqs.zk.changes import Changes
from foqs.zk.link import Link, check_config, mapped
from foqs.zk.protocol import Done, ZkConflict, ZkError, ZkRefused, ZkUnavailable, refusal_of
from foqs.zk.records import HOSTS, Paths, View

log = structlog.get_logger("foqs.zk")

_REFUSED_AGAIN_S = 5.0  # after a refusal
_PACE_S = 10e-6  # for each name: a folder of 10,000 is listed ten times a second at most
_JOIN_AGAIN_S = 1.0
_UNREAD = Written(0, 0, 0, 0)


class Nodes(Protocol):
    """The content of `folder`, empty for the root. Without `read` only names count, and their data is b''.

    `only` is the only relevant name.
    """

    @property
    def folder(self) -> str: ...
    @property
    def read(self) -> bool: ...
    @property
    def only(self) -> str | None: ...
    def put(self, name: str, data: bytes, written: Written, /) -> None: ...
    def drop(self, name: str, /) -> None: ...


class Folder:
    """Passes each change on to `nodes`, after a `reload` also unchanged nodes. Each node has a watch.

    Calls `whole()` when it has read all nodes that a reload found.
    """

    def __init__(
        self, link: Link, loop: asyncio.AbstractEventLoop, whole: Callable[[], None], root: str, nodes: Nodes
    ) -> None:
        self.path = f"{root}/{nodes.folder}" if nodes.folder else root
        self.loaded = False  # True once all nodes listed after the last `reload` are read
        self._link = link
        self._loop = loop
        self._whole = whole
        self._nodes = nodes
        self._names: frozenset[str] = frozenset()  # as listed last
        self._tokens: dict[str, object] = {}
        self._listing: object = None
        self._unread: set[str] | None = None

    def reload(self) -> None:
        """Read everything again. Call it at every connection: no watch survives the previous one."""
        self.loaded = False
        self._unread = None
        self._tokens.clear()
        self._list()

    def _list(self) -> None:
        token = self._listing = object()
        watch = partial(self._listing_fired, token)
        self._link.ask(lambda client: client.get_children_async(self.path, watch=watch), partial(self._listed, token))

    def _listing_fired(self, token: object, event: WatchedEvent) -> None:
        if token is self._listing and event.type != EventType.NONE:
            self._list_later(token, len(self._names) * _PACE_S)

    def _list_later(self, token: object, delay_s: float) -> None:
        self._loop.call_later(delay_s, lambda: self._list() if token is self._listing else None)

    def _listed(self, token: object, names: list[str], error: Exception | None) -> None:
        if token is not self._listing:
            return
        if error is not None:
            self._failed(self.path, error)
            self._list_later(token, _REFUSED_AGAIN_S)  # after a lost connection a `reload` comes first
            return
        before = self._names
        self._names = frozenset(names if self._nodes.only is None else {self._nodes.only} & set(names))
        for name in before - self._names:
            self._forget(name)
        new = self._names - self._tokens.keys()
        if self._unread is None:
            self._unread = set(new) if self._nodes.read else set()
        for name in new:
            self._read(name)
        self._see_if_loaded()

    def _read(self, name: str) -> None:
        token = self._tokens[name] = object()
        if not self._nodes.read:
            self._nodes.put(name, b"", _UNREAD)
            return
        path, watch = f"{self.path}/{name}", partial(self._fired, name, token)
        self._link.ask(
            lambda client: client.get_async(path, watch=watch), partial(self._got, name, token), urgent=False
        )

    def _fired(self, name: str, token: object, event: WatchedEvent) -> None:
        if self._tokens.get(name) is token and event.type != EventType.NONE:
            self._read(name)

    def _got(self, name: str, token: object, value: Any, error: Exception | None) -> None:
        if self._tokens.get(name) is not token:
            return
        if error is None:
            data, stat = value
            self._nodes.put(name, data or b"", Written(stat.czxid, stat.mzxid, stat.version, stat.mtime))
        elif isinstance(error, NoNodeError):
            self._forget(name)
        else:
            self._failed(f"{self.path}/{name}", error)
            if not isinstance(mapped(error), ZkRefused):
                return  # the connection is lost: a `reload` follows
        self._seen(name)

    def _forget(self, name: str) -> None:
        self._tokens.pop(name, None)
        self._nodes.drop(name)
        self._seen(name)

    def _seen(self, name: str) -> None:
        if self._unread:
            self._unread.discard(name)
            self._see_if_loaded()

    def _see_if_loaded(self) -> None:
        if not self.loaded and self._unread is not None and not self._unread:
            self.loaded = True
            self._whole()

    @staticmethod
    def _failed(path: str, error: Exception) -> None:
        refusal = mapped(error)
        if isinstance(refusal, ZkRefused):
            log.error("znode.not_read", node=path, reason=str(refusal))


class ZkFactStore:
    """A `FactStore`, called by one loop and calling it. Changes of one record are made in the order of their calls."""

    def __init__(self, config: ZookeeperSection, loop: asyncio.AbstractEventLoop) -> None:
        """Open no connection yet. Raises Invalid if a package is missing that the configuration needs."""
        check_config(config)
        paths = Paths(config.root)
        self._paths = paths
        self._loop = loop
        self._link = Link(config, loop, self._up, self._down)
        self._changes = Changes(self._link, paths)
        self._view = view = View(self._touch)
        sections: list[Nodes] = [
            view.shards, view.hosts, view.owners, view.drained, view.election, view.logs, view.documents,
            view.assignment, view.slots, view.identity,
        ]  # fmt: skip
        self._folders = [Folder(self._link, loop, self._touch, config.root, nodes) for nodes in sections]
        self._changed: Callable[[Facts], None] = lambda _: None
        self._session: Callable[[Session], None] = lambda _: None
        self._reported: Session | None = None
        self._connections = 0
        self._telling = False
        self._host: HostFact | None = None
        self._again: asyncio.TimerHandle | None = None
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def round_trips(self) -> Histogram:
        return self._link.round_trips

    def start(self, changed: Callable[[Facts], None], session: Callable[[Session], None]) -> None:
        self._changed, self._session = changed, session
        self._link.start()

    def join(self, host: HostFact) -> None:
        self._host = host
        if self._reported is Session.CONNECTED:
            self._spawn(self._register())

    def own(self, owner: OwnerFact, done: Done) -> None:
        self._change(self._paths.owner(owner.shard), lambda: self._changes.own(owner), done)

    def disown(self, shard: int, epoch: int, done: Done) -> None:
        self._change(self._paths.owner(shard), lambda: self._changes.disown(shard, epoch), done)

    def assign(self, hosts: Mapping[int, str], version: int, done: Done) -> None:
        hosts = dict(hosts)
        self._change(self._paths.assignment, lambda: self._changes.assign(hosts, version), done)

    def share_slots(self, slots: Slots, done: Done) -> None:
        self._change(self._paths.slots, lambda: self._changes.share_slots(slots), done)

    def identify(self, identity: Identity, done: Done) -> None:
        self._change(self._paths.identity, lambda: self._changes.identify(identity), done)

    def put_back_shard(self, fact: ShardFact, version: int, done: Done) -> None:
        self._change(self._paths.shard(fact.id), lambda: self._changes.put_back_shard(fact, version), done)

    def put_shard(self, fact: ShardFact, *, new: bool, done: Done) -> None:
        self._change(self._paths.shard(fact.id), lambda: self._changes.put_shard(fact, new=new), done)

    def remove_shard(self, shard: int, done: Done) -> None:
        self._change(self._paths.shard(shard), lambda: self._changes.remove_shard(shard), done)

    def recall(self, shard: int, done: Callable[[Marks, ZkError | None], None]) -> None:
        if self._reported is Session.CONNECTED:
            self._spawn(self._recall(shard, done))
        else:
            self._loop.call_soon(done, {}, ZkUnavailable("no connection to ZooKeeper"))

    async def _recall(self, shard: int, done: Callable[[Marks, ZkError | None], None]) -> None:
        try:
            marks = await self._changes.recall(shard)
        except ZkError as error:
            done({}, bare(error))
        else:
            done(marks, None)

    def remember(self, shard: int, identity: str, mark: Mark, done: Done) -> None:
        path = self._paths.mark(shard, identity)
        self._change(path, lambda: self._changes.remember(shard, identity, mark), done)

    def change_settings(self, ns: str, change: Change, done: Changed) -> None:
        outcome: list[Settings | FoqsError] = []

        async def work() -> None:
            known = self._view.settings.get(ns) or Settings(ns)
            try:
                outcome.append(await self._changes.change_settings(ns, change, known))
            except FoqsError as error:
                outcome.append(bare(error))

        self._change(
            self._paths.settings(ns), work, lambda error: done(outcome[0] if error is None else refusal_of(error))
        )

    def drain_host(self, host: str, *, drained: bool, done: Done) -> None:
        self._change(self._paths.drained(host), lambda: self._changes.drain_host(host, drained=drained), done)

    def close(self, done: Callable[[], None]) -> None:
        self._reported = None
        if self._again is not None:
            self._again.cancel()
        self._changed, self._session = lambda _: None, lambda _: None
        self._link.close(done)

    # ------------------------------------------------------------------------------------- changes

    def _change(self, line: str, work: Callable[[], Coroutine[Any, Any, None]], done: Done) -> None:
        if self._reported is Session.CONNECTED:
            self._spawn(self._in_line(line, work, done))
        else:
            self._loop.call_soon(done, ZkUnavailable("no connection to ZooKeeper"))

    async def _in_line(self, line: str, work: Callable[[], Coroutine[Any, Any, None]], done: Done) -> None:
        try:
            async with self._lines.setdefault(line, asyncio.Lock()):
                await work()
        except ZkError as error:
            done(bare(error))
        else:
            done(None)

    async def _register(self) -> None:
        host = self._host
        if host is None:
            return
        try:
            async with self._lines.setdefault(self._paths.folder(HOSTS), asyncio.Lock()):
                await self._changes.register(self._host or host)
        except ZkRefused as error:
            log.error("host.refused", host=host.id, reason=str(error))
        except ZkConflict:  # another process has the id: retry until its session has ended
            self._register_later()
        except ZkError as error:  # the connection was lost: the next connection registers the host
            log.debug("host.not_registered", host=host.id, reason=str(error))

    def _register_later(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.call_later(_JOIN_AGAIN_S, self._register_again)

    def _register_again(self) -> None:
        self._again = None
        if self._reported is Session.CONNECTED:  # otherwise the next connection registers it
            self._spawn(self._register())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("facts.failed", exc_info=fault)

    # ------------------------------------------------------------------------------------- sessions

    def _up(self, session: int) -> None:
        self._changes.session = session
        self._connections += 1
        self._spawn(self._begin(self._connections))

    async def _begin(self, connection: int) -> None:
        """Start a connection: folders, watches, and this host's own records."""
        try:
            await self._changes.prepare()
        except ZkRefused as error:  # the outcomes of changes will have the reason
            log.error("folders.refused", root=self._paths.root, reason=str(error))
        except ZkError:
            return  # lost again
        if connection != self._connections:
            return
        self._tell_session(Session.CONNECTED)
        for folder in self._folders:
            folder.reload()
        await self._register()

    def _down(self, expired: bool) -> None:
        self._connections += 1
        if expired and self._reported not in (None, Session.EXPIRED):
            self._tell_session(Session.EXPIRED)
        elif not expired and self._reported is Session.CONNECTED:
            self._tell_session(Session.SUSPENDED)

    def _tell_session(self, session: Session) -> None:
        self._reported = session
        log.info("session.changed", state=session.value)
        self._session(session)

    # ------------------------------------------------------------------------------------- facts

    def _touch(self) -> None:
        """Schedule a report of the facts after all answers of this turn of the loop."""
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        # The connection may have been lost since the last record was read.
        if self._reported is Session.CONNECTED and all(folder.loaded for folder in self._folders):
            self._changed(self._view.facts)
