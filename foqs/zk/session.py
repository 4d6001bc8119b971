"""An operator's session with a cluster: read the facts, make one change, and wait for the hosts to act on it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar
from uuid import uuid4

import structlog

from foqs.config.schema import ZookeeperSection
from foqs.errors import FoqsError, Forbidden, Unavailable
from foqs.ids import Marks
from foqs.policies.settings import Settings, adopt
from foqs.shardmgr.facts import Facts, Session, ShardFact, Slots
from foqs.shardmgr.operate import Change, Missing, made, shown
from foqs.zk.client import ZkFactStore
from foqs.zk.protocol import ZkConflict, ZkError, ZkRefused, ZkUnknown, carry_out

if TYPE_CHECKING:
    from foqs.shardmgr.backup import Import


T = TypeVar("T")
Audit = Callable[[Change, bool], None]
"""Called with a change and True if it was made, False if its outcome is unknown."""

_TRIES = 5  # a try fails if another command changed the facts first, or if the connection was lost


def audit_change(
    who: str, what: str, before: Mapping[str, object], after: Mapping[str, object], outcome: str = "made"
) -> None:
    """Log a change, whatever the level of the log is. Its author is an account or a principal."""
    always = structlog.make_filtering_bound_logger(logging.INFO)
    log = structlog.wrap_logger(None, wrapper_class=always, logger_factory_args=("foqs.audit",))
    log.info("audit.change", what=what, who=who, before=dict(before), after=dict(after), outcome=outcome)


class NotDone(FoqsError):
    """The time-out ended before the change took effect. The change is recorded, and the hosts continue with it."""


class Cluster:
    """A context manager that connects. Raises Unavailable if facts, or the effect of a change, take `timeout_s`."""

    def __init__(self, config: ZookeeperSection, timeout_s: float) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._facts: Facts | None = None
        self._session: Session | None = None
        self._fresh = False
        self._news = asyncio.Event()
        self._store: ZkFactStore

    async def __aenter__(self) -> Self:
        """Connect. Raises Unavailable, and Invalid if a package is missing."""
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
        """True if `facts` are current; False if ZooKeeper does not answer and they are its last state."""
        return self._fresh

    @property
    def facts(self) -> Facts:
        assert self._facts is not None
        return self._facts

    async def news(self) -> None:
        """Wait until the facts or the connection may have changed since the last return."""
        await self._news.wait()
        self._news.clear()

    async def fresh(self) -> Facts:
        """Wait for current facts. Raises Unavailable after the time-out."""
        return await self._when(lambda _: True, self._why_silent)

    async def carry_out(self, decide: Callable[[Facts], Change], audit: Audit) -> Change:
        """Make the change that `decide` returns, and return it when the facts show it.

        If another command changes the facts first, `decide` runs again, a few times. Raises what `decide` raises,
        Forbidden if ZooKeeper refuses the change, Unavailable if the change does not reach it.
        """
        doubtful: Change | None = None  # a change that was sent, with an unknown outcome
        try:
            for _ in range(_TRIES):
                facts = await self._when(lambda facts: not facts.identity.open, self._why_waits)
                # After a lost answer the facts may have been stale: from before, or from a server that lags.
                if doubtful is not None and doubtful.action is not None and made(doubtful.action, facts):
                    change, doubtful = doubtful, None
                    audit(change, True)
                    return change
                change = decide(facts)
                action = change.action
                if action is None:
                    return change
                before, doubtful = doubtful, change
                error = await self._answer(partial(carry_out, action, self._store))
                if not isinstance(error, ZkUnknown):
                    doubtful = before
                if isinstance(error, ZkRefused):
                    raise Forbidden(f"{error}; check acl and auth_credential of [zookeeper]") from error
                if error is None:
                    doubtful = None
                    audit(change, True)
                if error is None or isinstance(error, ZkConflict):
                    await self._when(partial(shown, action), lambda: "ZooKeeper does not show the change")
                if error is None:
                    return change
            raise Unavailable(f"{_TRIES} tries failed: conflicting changes or connection losses; retry")
        finally:
            if doubtful is not None:
                audit(doubtful, False)

    async def adopt(self, copies: Iterable[Settings], place: str) -> list[Settings]:
        """Put the settings found in `place` into ZooKeeper where they are newer, and return the stored settings.

        Raises Conflict if the cluster's were made apart from them, and Unavailable.
        """
        stored = []
        for copy in copies:
            found = await self._answer(partial(self._store.change_settings, copy.ns, adopt(copy, place)))
            if isinstance(found, FoqsError):
                try:
                    raise found
                finally:
                    del found
            stored.append(found)
        return stored

    async def marks(self, shard: int) -> Marks:
        """Return the marks of a shard. Raises Unavailable."""

        def ask(done: Callable[[tuple[Marks, ZkError | None]], None]) -> None:
            self._store.recall(shard, lambda marks, error: done((marks, error)))

        marks, error = await self._answer(ask)
        if error is not None:
            raise Unavailable(f"ZooKeeper: {error}; the marks of shard {shard} were not read")
        return marks

    async def write_import(self, plan: Import, replaces: Iterable[ShardFact]) -> None:
        """Write an import. Hosts act on nothing of it before it is complete. Raises Unavailable, Forbidden."""
        store, identity = self._store, plan.identity
        event = f"import-{uuid4().hex}"
        opened = (
            None
            if identity is None
            else replace(identity, id=identity.id or uuid4().hex, events=(event, *identity.events), open=True)
        )
        if opened is not None:
            await self._write(partial(store.identify, opened))
        for settings in plan.settings:
            outcome = await self._answer(partial(store.change_settings, settings.ns, adopt(settings, "the file")))
            if isinstance(outcome, FoqsError):
                try:
                    raise outcome
                finally:
                    del outcome
        for shard, marks in plan.marks.items():
            for identity_of_shard, mark in marks.items():
                await self._write(partial(store.remember, shard, identity_of_shard, mark))
        for host in plan.drained:
            await self._write(partial(store.drain_host, host, drained=True))
        if plan.slots is not None:
            await self._write(partial(store.share_slots, plan.slots))
        if plan.assignment is not None:
            await self._write(partial(store.assign, plan.assignment, -1))
        for fact in plan.shards:
            await self._write(partial(store.put_shard, fact, new=True))
        for fact in replaces:
            await self._write(partial(store.put_shard, fact, new=False))
        if opened is not None:
            await self._write(partial(store.identify, replace(opened, version=opened.version + 1, open=False)))

    async def _write(self, write: Callable[..., object]) -> None:
        error: ZkError | None = await self._answer(lambda done: write(done=done))
        if isinstance(error, ZkRefused):
            raise Forbidden(f"{error}; check acl and auth_credential of [zookeeper]") from error
        if error is not None:
            raise Unavailable(f"ZooKeeper: {error}; a part of the file is written: run the command again with --merge")

    async def share_slots(self, wanted: Callable[[Facts], Slots]) -> None:
        """Write the record of deduplication slots that `wanted` returns. Raises Unavailable."""
        for _ in range(_TRIES):
            facts = await self.fresh()
            if (slots := wanted(facts)) == facts.slots:
                return
            error = await self._answer(partial(self._store.share_slots, slots))
            if error is not None and not isinstance(error, ZkConflict | ZkUnknown):
                raise Unavailable(f"ZooKeeper: {error}; the slots of deduplication keys were not written")
            await self._when(partial(_other_slots, facts), lambda: "ZooKeeper shows no change")
        raise Unavailable(f"{_TRIES} tries failed: the record of deduplication slots keeps changing; retry")

    async def until(self, missing: Missing, timeout_s: float, progress: Callable[[str], None]) -> None:
        """Wait until `missing` returns nothing.

        `progress` gets the missing steps each time they change. Raises NotDone after `timeout_s`, and what `missing`
        raises.
        """
        deadline, said = time.monotonic() + timeout_s, ""
        while left := missing(self.facts) if self._fresh else ["ZooKeeper does not answer"]:
            if (words := _shortened(left)) != said:
                progress(words)
                said = words
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self.news()
            except TimeoutError:
                raise NotDone(
                    f"not finished within {timeout_s:g} s (--timeout): {said}. The change is recorded; hosts continue"
                ) from None

    def _changed(self, facts: Facts) -> None:
        self._facts, self._fresh = facts, self._session is Session.CONNECTED
        self._news.set()

    def _sessions(self, session: Session) -> None:
        self._session, self._fresh = session, False
        self._news.set()

    async def _when(self, condition: Callable[[Facts], bool], why: Callable[[], str]) -> Facts:
        deadline = time.monotonic() + self._timeout_s
        while self._facts is None or not self._fresh or not condition(self._facts):
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self.news()
            except TimeoutError:
                raise Unavailable(f"{why()} (waited {self._timeout_s:g} s)") from None
        return self._facts

    def _why_waits(self) -> str:
        if self._facts is not None and self._fresh:
            return "ZooKeeper lost data, and the hosts write it back: the change was not made"
        return self._why_silent()

    def _why_silent(self) -> str:
        servers, root = self._config.hosts, self._config.root
        if self._session is Session.CONNECTED:
            return f"ZooKeeper at {servers} shows no data below {root}: check auth_credential of [zookeeper]"
        reasons = ["it cannot be reached"]
        if self._config.tls:
            reasons.append("TLS with it fails (`foqs doctor` says why)")
        if self._config.auth_scheme is not None:
            reasons.append("it refuses the credential of [zookeeper]")
        return f"no connection to ZooKeeper at {servers}: {', or '.join(reasons)}"

    async def _answer(self, send: Callable[[Callable[[T], None]], object]) -> T:
        """Send a change and return what its callback gets. Raises Unavailable after the time-out."""
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        send(partial(_settle, outcome))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await outcome
        except TimeoutError:
            raise Unavailable(
                "ZooKeeper does not answer: it is unknown if the change was made; check `foqs cluster status`"
            ) from None


def _settle(outcome: asyncio.Future[T], result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _other_slots(before: Facts, facts: Facts) -> bool:
    return facts.slots.version != before.slots.version


def _shortened(left: list[str]) -> str:
    more = f" and {len(left) - 3:,} more" if len(left) > 3 else ""
    return "; ".join(left[:3]) + more
