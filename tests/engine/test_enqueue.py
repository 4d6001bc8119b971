"""Which shard takes an enqueue: the fast decision is the plain one, on any state of the shards."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from foqs.buffers.shard_batch import Chunk, ShardBatch
from foqs.config.schema import HostSection
from foqs.engine import enqueue
from foqs.engine.calls import EnqueueCall
from foqs.engine.shard import Shard
from foqs.shardmgr.lifecycle import BreakerState, ShardState
from tests.engine.laboratory import KEY, Laboratory

NOW_MS = 1_000_000
CONFIG = HostSection(pending_rows=1_000, lanes=2)
HANG_MS = 1_000


@dataclass
class Seen:
    """What one shard is like. `age_ms` is that of its batch in flight, if there is one."""

    takes_new: bool
    state: ShardState
    breaker: BreakerState
    lost: bool
    age_ms: int | None
    batch_rows: int
    chunk_rows: int
    changes: int
    lanes: int


def mostly(usual: object, others: list[object]) -> st.SearchStrategy:
    return st.sampled_from([*[usual] * 8, *others])


seen = st.builds(
    Seen,
    takes_new=mostly(True, [False]),
    state=mostly(ShardState.SERVING, [ShardState.DRAINING]),
    breaker=mostly(BreakerState.CLOSED, [BreakerState.OPEN, BreakerState.HALF_OPEN]),
    lost=mostly(False, [True]),
    age_ms=st.sampled_from([None, 0, 10, 11, HANG_MS, HANG_MS + 1]),
    batch_rows=st.integers(0, 40),
    chunk_rows=st.sampled_from([0, 1, 5, 31, 32, 33, 900]),
    changes=mostly(0, [1, 50, 100, 1_000]),
    lanes=mostly(1, [2]),
)


class Draws:
    """A generator of random numbers that were drawn before."""

    def __init__(self, draws: list[float]) -> None:
        self._draws = iter(draws)

    def random(self) -> float:
        return next(self._draws)


def arranged(lab: Laboratory, shards: list[Seen]) -> None:
    lab.engine.state.serving = [lab.engine.state.shards[number] for number in range(1, len(shards) + 1)]
    for shard, like in zip(lab.engine.state.serving, shards, strict=True):
        shard.configure(CONFIG)
        shard.owner.hang_ms = HANG_MS
        shard.owner.takes_new, shard.owner.state, shard.owner.breaker.state = like.takes_new, like.state, like.breaker
        shard.owner.lost, shard.queue.chunk_rows = like.lost, like.chunk_rows
        shard.queue.changes = deque([None] * like.changes)  # type: ignore[list-item]
        shard.memory.lanes = {("ns", f"other {n}"): None for n in range(like.lanes)}  # type: ignore[dict-item,misc]
        shard.memory.idle_lanes = {}
        shard.queue.in_flight = None
        if like.age_ms is not None:
            shard.queue.in_flight = ShardBatch(rows=like.batch_rows, begun_ms=NOW_MS - like.age_ms)


def load(shard: Shard) -> int:
    in_flight = shard.queue.in_flight
    return shard.queue.chunk_rows + len(shard.queue.changes) + (in_flight.rows if in_flight is not None else 0)


def plain_choice(lab: Laboratory, chunk: Chunk, first: float, second: float) -> Shard | None:
    healthy = [shard for shard in lab.engine.state.serving if shard.owner.takes_new and shard.healthy(NOW_MS)]
    room = [
        shard
        for shard in healthy
        if shard.queue.chunk_rows + len(shard.queue.changes) < CONFIG.pending_rows
        and (len(shard.memory.lanes) < CONFIG.lanes or shard.takes_lanes(chunk))
    ]
    gathering = [
        shard
        for shard in room
        if shard.queue.chunk_rows < 32
        and shard.queue.in_flight is not None
        and NOW_MS - shard.queue.in_flight.begun_ms <= 10
    ]
    if gathering:
        return next((shard for shard in gathering if shard.queue.chunk_rows), gathering[0])
    if not room:
        return None
    shard, other = (room[int(draw * len(room))] for draw in (first, second))
    return other if load(other) < load(shard) else shard


LAB = Laboratory(1, 2, 3, 4)
draws = st.floats(0, 1, exclude_max=True)


@given(st.lists(seen, max_size=4), draws, draws)
def test_the_choice_is_the_plain_one(shards: list[Seen], first: float, second: float) -> None:
    arranged(LAB, shards)
    LAB.engine.state.rng = Draws([first, second])  # type: ignore[assignment]
    chunk = Chunk(EnqueueCall(1, lambda _: None), [0], [LAB.item()], [KEY], 7)
    assert enqueue.choose(LAB.engine.state, chunk, NOW_MS) is plain_choice(LAB, chunk, first, second)
