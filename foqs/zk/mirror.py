"""The current nodes of a folder: read with one watch each, and read again when a watch fires.

kazoo's answers and events arrive in ZooKeeper's order, so the state of a name is one token: that of its read in flight,
or of the watch that this read set. An answer or event with another token is older, and ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent

from foqs.zk.errors import mapped
from foqs.zk.link import Link
from foqs.zk.protocol import ZkRefused

log = structlog.get_logger("foqs.zk")

Put = Callable[[str, bytes, int], None]
Drop = Callable[[str], None]

_AGAIN_S = 5.0  # after a refusal
_PACE_S = 10e-6  # for each name: a folder of 10,000 is listed ten times a second at most


class Folder:
    """Calls `put(name, data, version)` and `drop(name)` at every change, `put` also for unchanged nodes after a
    `reload`, and `whole()` when it has read all nodes that a reload found. Without `read` only names count, and their
    data is b''. `only`: the one relevant name."""

    def __init__(
        self,
        link: Link,
        loop: asyncio.AbstractEventLoop,
        whole: Callable[[], None],
        path: str,
        put: Put,
        drop: Drop,
        *,
        read: bool = True,
        only: str | None = None,
    ) -> None:
        self.path = path
        self.loaded = False  # True once all nodes listed after the last `reload` are read
        self._link = link
        self._loop = loop
        self._whole = whole
        self._put = put
        self._drop = drop
        self._data = read
        self._only = only
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
            self._list_later(token, _AGAIN_S)  # after a lost connection a `reload` comes first
            return
        before = self._names
        self._names = frozenset(names if self._only is None else {self._only} & set(names))
        for name in before - self._names:
            self._forget(name)
        new = self._names - self._tokens.keys()
        if self._unread is None:
            self._unread = set(new) if self._data else set()
        for name in new:
            self._read(name)
        self._see_if_loaded()

    def _read(self, name: str) -> None:
        token = self._tokens[name] = object()
        if not self._data:
            self._put(name, b"", 0)
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
            self._put(name, data or b"", stat.version)
        elif isinstance(error, NoNodeError):
            self._forget(name)
        else:
            self._failed(f"{self.path}/{name}", error)
            if not isinstance(mapped(error), ZkRefused):
                return  # the connection is lost: a `reload` follows
        self._seen(name)

    def _forget(self, name: str) -> None:
        self._tokens.pop(name, None)
        self._drop(name)
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
