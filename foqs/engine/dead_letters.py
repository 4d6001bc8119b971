"""The groups of a dead-letter topic on the shards of this host, and how reads of dead letters are queued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from foqs.buffers.shard_batch import DeadRead, GroupsRead
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.errors import FoqsError, Unavailable
from foqs.fairness.keys import TopicKey, lane_key
from foqs.policies.failures import FailureFilter
from foqs.rows import FailureGroup, FailureGroups, FailurePosition

ROWS = 2_000
"""Rows that one read looks at: the work of other requests for the shard goes on between two."""
_CAUSES = 4
GroupKey = tuple[int, int]
"""(fingerprint, cause)"""


def dead_lane(shard: Shard, key: TopicKey) -> int | None:
    """Return the number of the topic's lane in the shard; None if it has no dead letters."""
    lane = shard.lanes.get(lane_key(key))
    return lane.number if lane is not None and lane.dead else None


def withdraw(shards: Iterable[Shard], done: Callable[..., None]) -> None:
    """Drop the reads that would call `done`: a shard without a connection would keep them."""
    for shard in shards:
        kept = [read for read in shard.dead_reads if read.done != done]
        if len(kept) < len(shard.dead_reads):
            shard.dead_reads.clear()
            shard.dead_reads.extend(kept)


def queue(state: State, shard: Shard, read: GroupsRead | DeadRead) -> None:
    shard.dead_reads.append(read)
    state.touch(shard)


def merged(first: FailureGroup | None, second: FailureGroup) -> FailureGroup:
    """Return both as one; the sample is that of the first."""
    if first is None:
        return second
    return first._replace(
        items=first.items + second.items,
        first_died_at_ms=min(first.first_died_at_ms, second.first_died_at_ms),
        last_died_at_ms=max(first.last_died_at_ms, second.last_died_at_ms),
    )


class FailureListing:
    """The first `limit` groups behind `after`, over all shards that are served here.

    Calls `reply` with the groups, by (fingerprint, cause), and whether there are more; or `fail`; once."""

    def __init__(
        self,
        state: State,
        key: TopicKey,
        wanted: FailureFilter,
        limit: int,
        after: GroupKey | None,
        reply: Callable[[list[FailureGroup], bool], None],
        fail: Callable[[FoqsError], object],
    ) -> None:
        self._state = state
        self._key = key
        self._wanted = wanted
        self._limit = limit
        self._after = after
        self._reply = reply
        self._fail = fail
        self._left = [shard.number for shard in state.serving]
        self._groups: dict[GroupKey, FailureGroup] = {}
        self._of_shard: set[GroupKey] = set()
        self._more = False
        self.done = False

    def begin(self, deadline_ms: int) -> None:
        self._state.deadlines.push(deadline_ms, self)
        self._state.alarm(deadline_ms)
        self._next_shard()

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self.done = True
        withdraw(shards.values(), self._read)
        self._fail(Unavailable("a shard did not answer in time"))

    def _next_shard(self) -> None:
        while self._left:
            shard = self._state.shards.get(self._left[-1])
            if shard is not None and dead_lane(shard, self._key) is not None:
                self._of_shard = set()
                self._ask(shard, None if self._after is None else (self._after[0], 0))
                return
            self._left.pop()
        self.done = True
        keys = sorted(self._groups)
        self._reply([self._groups[key] for key in keys[: self._limit]], self._more or len(keys) > self._limit)

    def _ask(self, shard: Shard, after: FailurePosition | None) -> None:
        lane = dead_lane(shard, self._key)
        if lane is None:
            self._left.pop()
            self._next_shard()
            return
        queue(self._state, shard, GroupsRead(lane, after, self._wanted, self._limit + _CAUSES, ROWS, self._read))

    def _read(self, found: FailureGroups | None, error: FoqsError | None) -> None:
        if self.done:
            return
        if found is None:
            self.done = True
            self._fail(error or Unavailable("the shard was not read"))
            return
        for group in found.groups:
            key = (group.fingerprint, group.cause)
            if self._after is None or key > self._after:
                self._groups[key] = merged(self._groups.get(key), group)
                self._of_shard.add(key)
        shard = self._state.shards.get(self._left[-1])
        if found.next is not None and shard is not None:
            # Later rows may belong to the groups of the last fingerprint; the groups before it are whole.
            if sum(fingerprint < found.next[0] for fingerprint, _ in self._of_shard) < self._limit:
                self._ask(shard, found.next)
                return
            self._more = True
        self._left.pop()
        self._next_shard()
