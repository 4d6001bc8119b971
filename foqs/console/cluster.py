"""The session of the console with ZooKeeper: one for all users, and only with the configuration of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from foqs.config.schema import ZookeeperSection
from foqs.errors import FoqsError, Unavailable
from foqs.shardmgr.facts import Facts
from foqs.shardmgr.operate import Change
from foqs.shardmgr.status import Status, status_of
from foqs.zk.session import Cluster, NotDone, audit_change

CHANGE_S = 10.0
"""ZooKeeper has this time for each step of a change."""
LOOK_S = 2.0
"""A page waits this long for ZooKeeper."""
EFFECT_S = 10.0
"""A page waits this long for the hosts to finish a change."""


class ClusterLink:
    """Connects when a page needs it first, and stays connected: ZooKeeper reports changes, so a page costs it nothing.
    The loop never waits for it: threads of the client do."""

    def __init__(self, section: ZookeeperSection, look_s: float = LOOK_S, effect_s: float = EFFECT_S) -> None:
        self._section = section
        self._look_s = look_s
        self._effect_s = effect_s
        self._opening: asyncio.Task[Cluster] | None = None
        self._shown: tuple[Facts, Status] | None = None

    async def look(self) -> tuple[Facts, Status, bool]:
        """Return the facts, their summary, and True if they are current: False if ZooKeeper does not answer, and they
        are its last state. Raises Unavailable, Invalid if a package is missing."""
        cluster = await self._session()
        facts = cluster.facts
        if self._shown is None or self._shown[0] is not facts:
            self._shown = facts, await asyncio.to_thread(status_of, facts)
        return facts, self._shown[1], cluster.connected

    async def fresh(self) -> Facts:
        """Return current facts. Raises as `look` does."""
        return await (await self._session()).fresh()

    async def carry_out(self, decide: Callable[[Facts], Change], who: str) -> tuple[Change, str]:
        """Make a change and log it for the audit, with its author. Return it with the steps that the hosts have not
        finished after a while, "" without one. Raises what `decide` raises, Forbidden, Unavailable, Invalid."""
        cluster = await self._session()
        left = [""]
        change = await cluster.carry_out(decide, partial(_audit, who))
        with suppress(NotDone):
            await cluster.until(change.missing, self._effect_s, left.append)
            return change, ""
        return change, left[-1]

    async def close(self) -> None:
        opening, self._opening = self._opening, None
        if opening is None:
            return
        if not opening.done():
            opening.cancel()
        with suppress(FoqsError, asyncio.CancelledError):
            await (await opening).__aexit__()

    async def _session(self) -> Cluster:
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(self._connect())
        opening = self._opening
        done, _ = await asyncio.wait([opening], timeout=self._look_s)
        if not done:
            raise Unavailable(f"ZooKeeper at {self._section.hosts} has not answered yet")
        return opening.result()

    async def _connect(self) -> Cluster:
        return await Cluster(self._section, CHANGE_S).__aenter__()


def _audit(who: str, change: Change, certain: bool) -> None:
    audit_change(who, change.what, change.before, change.after, "made" if certain else "unknown")
