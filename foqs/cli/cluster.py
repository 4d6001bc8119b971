"""A command's session with a cluster: the facts as they are, one change, and waiting for what comes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Self

from foqs.errors import FoqsError, Forbidden, Unavailable
from foqs.sections import ZookeeperSection
from foqs.shardmgr.facts import Facts
from foqs.shardmgr.operate import Action, Assign, Change, MarkHost, Missing, PutShard, RemoveShard, made, shown
from foqs.zk.client import ZkFactStore
from foqs.zk.protocol import Done, Session, ZkConflict, ZkError, ZkRefused, ZkUnknown

Audit = Callable[[Change, bool], None]
"""Told of each change that was made, and (False) of one that may have been: nobody waited for the answer."""

_TRIES = 5  # each that fails means that somebody else has made a change, or that the connection was lost


class NotDone(FoqsError):
    """The time is over. What was changed stands, and goes on."""


class Cluster:
    """Connects as a context manager; raises Unavailable when no facts come within `timeout_s`, which is also how long a
    change may take."""

    def __init__(self, config: ZookeeperSection, timeout_s: float) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._told: Facts | None = None
        self._session: Session | None = None
        self._fresh = False
        self._news = asyncio.Event()
        self._store: ZkFactStore

    async def __aenter__(self) -> Self:
        """Raises Unavailable, and Invalid when a package is missing."""
        self._store = ZkFactStore(self._config, asyncio.get_running_loop())
        self._store.start(self._changed, self._sessions)
        try:
            await self.fresh()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        closed = asyncio.Event()
        self._store.close(closed.set)
        await closed.wait()

    @property
    def connected(self) -> bool:
        """Whether `facts` are what ZooKeeper says now, not what it said last."""
        return self._fresh

    @property
    def facts(self) -> Facts:
        assert self._told is not None
        return self._told

    async def news(self) -> None:
        """Returns when the facts or the connection may have changed since it returned last."""
        await self._news.wait()
        self._news.clear()

    async def fresh(self) -> Facts:
        """The facts of a standing connection. Raises Unavailable after the time-out."""
        return await self._when(lambda _: True, self._why_silent)

    async def carry_out(self, decide: Callable[[Facts], Change], audit: Audit) -> Change:
        """Makes the change that `decide` gives (what it raises is raised), and returns it when the facts show it. It is
        decided again, a few times, when somebody else changes the facts first. Raises Forbidden when ZooKeeper refuses
        it, Unavailable when it does not get through."""
        doubtful: Change | None = None  # was sent, and nobody knows whether it was made
        try:
            for _ in range(_TRIES):
                facts = await self.fresh()
                # They may have been older when the answer was lost: those of before, or of a server that is behind.
                if doubtful is not None and doubtful.action is not None and made(doubtful.action, facts):
                    change, doubtful = doubtful, None
                    audit(change, True)
                    return change
                change = decide(facts)
                action = change.action
                if action is None:
                    return change
                before, doubtful = doubtful, change
                error = await self._send(action)
                if not isinstance(error, ZkUnknown):
                    doubtful = before
                if isinstance(error, ZkRefused):
                    raise Forbidden(f"{error}; see acl and auth_credential of [zookeeper]") from error
                if error is None:
                    doubtful = None
                    audit(change, True)
                if error is None or isinstance(error, ZkConflict):
                    await self._when(partial(shown, action), lambda: "ZooKeeper does not show what has changed")
                if error is None:
                    return change
            raise Unavailable("others go on changing the same, or the connection is lost again and again: try again")
        finally:
            if doubtful is not None:
                audit(doubtful, False)

    async def until(self, missing: Missing, timeout_s: float, progress: Callable[[str], None]) -> None:
        """Returns when nothing is missing; `progress` is told what is, whenever that is something else. Raises NotDone
        after `timeout_s`, and what `missing` raises."""
        deadline, said = time.monotonic() + timeout_s, ""
        while left := missing(self.facts) if self._fresh else ["ZooKeeper does not answer"]:
            if (words := _shortened(left)) != said:
                progress(words)
                said = words
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self.news()
            except TimeoutError:
                raise NotDone(f"not done within {timeout_s:g} s: {said}. The change stands, and goes on") from None

    # ------------------------------------------------------------------------------------- the store's calls

    def _changed(self, facts: Facts) -> None:
        self._told, self._fresh = facts, self._session is Session.CONNECTED
        self._news.set()

    def _sessions(self, session: Session) -> None:
        self._session, self._fresh = session, False
        self._news.set()

    # ------------------------------------------------------------------------------------- waiting

    async def _when(self, condition: Callable[[Facts], bool], why: Callable[[], str]) -> Facts:
        deadline = time.monotonic() + self._timeout_s
        while self._told is None or not self._fresh or not condition(self._told):
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self.news()
            except TimeoutError:
                raise Unavailable(f"{why()} (waited {self._timeout_s:g} s)") from None
        return self._told

    def _why_silent(self) -> str:
        servers, root = self._config.hosts, self._config.root
        if self._session is Session.CONNECTED:
            return f"ZooKeeper at {servers} shows nothing of {root}: is auth_credential of [zookeeper] right?"
        also = ", or it refuses the credential of [zookeeper]" if self._config.auth_scheme is not None else ""
        return f"no connection to ZooKeeper at {servers}: it cannot be reached{also}"

    async def _send(self, action: Action) -> ZkError | None:
        """What became of it. Raises Unavailable after the time-out."""
        outcome: asyncio.Future[ZkError | None] = asyncio.get_running_loop().create_future()

        def done(error: ZkError | None) -> None:
            if not outcome.done():
                outcome.set_result(error)

        self._ask(action, done)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await outcome
        except TimeoutError:
            raise Unavailable("ZooKeeper does not answer: whether the change was made is unknown") from None

    def _ask(self, action: Action, done: Done) -> None:
        match action:
            case PutShard(fact, before):
                self._store.put_shard(fact, new=before is None, done=done)
            case RemoveShard(before):
                self._store.remove_shard(before.id, done)
            case Assign(hosts, version):
                self._store.assign(hosts, version, done)
            case MarkHost(host, drained):
                self._store.drain_host(host, drained=drained, done=done)


def _shortened(left: list[str]) -> str:
    more = f" and {len(left) - 3:,} more" if len(left) > 3 else ""
    return "; ".join(left[:3]) + more
