"""Writes of a host to the cluster's facts in ZooKeeper; each outcome is logged."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from foqs.shardmgr.controller import Write
from foqs.shardmgr.facts import HostFact, OwnerFact, Slots
from foqs.zk.protocol import FactStore, ZkConflict, ZkError

log = structlog.get_logger("foqs.host")


class LoggedFactWriter:
    """The `FactWriter` of a `MembershipAgent`. A failed write is not repeated here: the agent writes again if
    the facts still ask for it."""

    def __init__(self, store: FactStore) -> None:
        self._store = store

    def join(self, host: HostFact) -> None:
        self._store.join(host)

    def own(self, owner: OwnerFact) -> None:
        self._store.own(owner, _logged("announce", owner.shard))

    def disown(self, shard: int, epoch: int) -> None:
        self._store.disown(shard, epoch, _logged("withdraw", shard))

    def assign(self, write: Write) -> None:
        def done(error: ZkError | None) -> None:
            # A conflict is the write of another controller, or an earlier one of this host.
            version = write.version + 1
            if error is None:
                log.info(
                    "assignment.written",
                    version=version, placed=write.placed, moved=write.moved, dropped=write.dropped,
                )  # fmt: skip
            elif not isinstance(error, ZkConflict):
                log.warning("assignment.not_written", version=version, reason=str(error))

        self._store.assign(write.hosts, write.version, done)

    def share_slots(self, wanted: Slots, done: Callable[[], None]) -> None:
        """`wanted` has the version that it replaces. `done` is called with either outcome."""

        def logged(error: ZkError | None) -> None:
            done()
            version, moving = wanted.version + 1, len(wanted.moves)
            if error is None:
                log.info("slots.written", version=version, moving=moving)
            elif not isinstance(error, ZkConflict):
                log.warning("slots.not_written", version=version, moving=moving, reason=str(error))

        self._store.share_slots(wanted, logged)


def _logged(what: str, number: int) -> Callable[[ZkError | None], None]:
    def done(error: ZkError | None) -> None:
        if error is not None:
            log.warning("owner.not_written", what=what, shard=number, reason=str(error))

    return done
