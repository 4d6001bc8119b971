"""Which shard takes an enqueue."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.buffers.pending_dedup import Keyed
from foqs.buffers.shard_batch import Chunk, TakesIds
from foqs.engine.calls import EnqueueCall
from foqs.engine.shard import Shard
from foqs.engine.shard_owner import ShardOwner
from foqs.engine.state import State
from foqs.errors import Overloaded, Unavailable
from foqs.fairness.keys import rules_of
from foqs.rules import MOST_RULES
from foqs.shardmgr.lifecycle import BreakerState, ShardState

# Members of enums, bound once for the hot path.
_SERVING, _CLOSED = ShardState.SERVING, BreakerState.CLOSED
_CHUNK_ROWS = 1_000
_GATHER_ROWS = 32
_GATHER_MS = 10
_SHARE = 0.3  # of the budget, on top of the share of the input
RETRY_MS = 100
READ_ONLY = "the shard's database is read-only"


def stores(state: State, now_ms: int) -> bool:
    """Return True if a shard can take items now."""
    return any(takes(shard, now_ms) for shard in state.serving)


def takes(shard: Shard, now_ms: int) -> bool:
    return shard.owner.takes_new and shard.healthy(now_ms) and not shard.owner.full(now_ms)


def place(state: State, chunk: Chunk, now_ms: int) -> None:
    """Give `chunk` to one of the healthy shards, or refuse it."""
    if chunk.request.done:
        return
    shard, budget = choose(state, chunk, now_ms), state.budget
    fits = budget.used_bytes <= budget.limit_bytes * (state.config.host.input_share + _SHARE)
    if shard is None or not fits:
        healthy = [shard for shard in state.serving if takes(shard, now_ms)]
        error = _no_room(healthy, chunk) if healthy else nowhere(state, now_ms)
        left = _place_known(state, chunk, healthy) if fits else chunk
        if left.items:
            chunk.request.refused(left.indices, error)
        return
    shard.queue.add(chunk)
    if not state.dirty:  # `touch`
        state.wake()
    state.dirty[shard] = None


def _place_known(state: State, chunk: Chunk, healthy: Sequence[Shard]) -> Chunk:
    """Give the items whose lanes a shard with room has to such a shard, because no shard takes all lanes of `chunk`.
    Return the items that are left: an item of a new lane must not fail those before and behind it."""
    parts: list[tuple[Shard, Chunk]] = []
    left = chunk
    for shard in healthy:
        if shard.queue.chunk_rows + len(shard.queue.changes) >= shard.config.pending_rows:
            continue
        known = [at for at, key in enumerate(left.keys) if key in shard.memory.lanes]
        if known:
            parts.append((shard, left.part(known)))
            left = left.part([at for at, key in enumerate(left.keys) if key not in shard.memory.lanes])
    request = chunk.request
    if parts and isinstance(request, EnqueueCall):
        request.chunks = [one for one in request.chunks if one is not chunk] + [part for _, part in parts]
    for shard, part in parts:
        shard.queue.add(part)
        state.touch(shard)
    return left


def choose(state: State, chunk: Chunk, now_ms: int) -> Shard | None:
    """Return a healthy shard with room whose next transaction is small and waits for one in flight, the first that has
    items for it; else the less loaded of two random ones (Mitzenmacher 2001). Each transaction costs a flush. None: no
    shard has room for `chunk`.

    Every enqueue asks this of each shard, so `Shard.healthy` is written out."""
    room: list[tuple[int, Shard]] = []  # with the rows that wait or are in flight
    gathering = None
    for shard in state.serving:
        owner, queue, config = shard.owner, shard.queue, shard.config
        if not owner.takes_new or owner.state is not _SERVING or owner.breaker.state is not _CLOSED or owner.lost:
            continue
        if owner.disk_full and now_ms < owner.full_until_ms:
            continue
        batch, rows = queue.in_flight, queue.chunk_rows
        if batch is not None and now_ms - batch.begun_ms > owner.hang_ms:
            continue
        load = rows + len(queue.changes)
        if load >= config.pending_rows:
            continue
        if len(shard.memory.lanes) >= config.lanes and not shard.takes_lanes(chunk):
            continue
        if chunk.ruled and not shard.memory.takes_rules(chunk.keys):
            continue
        room.append((load if batch is None else load + batch.rows, shard))
        # Not where a database begins to hang.
        if batch is not None and rows < _GATHER_ROWS and now_ms - batch.begun_ms <= _GATHER_MS:
            if rows:
                return shard
            gathering = gathering or shard
    if gathering is not None or not room:
        return gathering
    random, count = state.rng.random, len(room)
    (load, shard), (other_load, other) = room[int(random() * count)], room[int(random() * count)]
    return other if other_load < load else shard


def place_elsewhere(state: State, shard: Shard, chunk: Chunk, now_ms: int) -> None:
    """Give `chunk`, which `shard` did not store, to a healthy shard, or refuse it.

    Items with deduplication keys or order keys are refused: other items with these keys are in `shard`. So are later
    items of a request with order keys, which would else overtake earlier ones.
    """
    if not chunk.bound:
        place(state, chunk, now_ms)
    elif shard.healthy(now_ms) and chunk.ruled and not shard.memory.takes_rules(chunk.keys):
        chunk.request.refused(chunk.indices, too_many_rules())
    elif shard.healthy(now_ms) and not shard.takes_lanes(chunk):
        chunk.request.refused(chunk.indices, too_many_lanes(shard))
    else:
        chunk.request.refused(chunk.indices, unusable(shard, now_ms))
    if chunk.ordered:
        for behind in shard.queue.take_behind(chunk):
            behind.request.refused(behind.indices, unusable(shard, now_ms))


def again_ms(owner: ShardOwner, now_ms: int) -> int:
    """Return how long a refused caller should wait: until the breaker's next trial, or a full database's, and
    `RETRY_MS` at least."""
    full_ms = owner.full_until_ms - now_ms if owner.disk_full else 0
    return max(RETRY_MS, owner.breaker.retry_at_ms(now_ms) - now_ms, full_ms)


def unusable(shard: Shard, now_ms: int) -> Unavailable:
    """The refusal of items whose keys are in slots of `shard`, which cannot store them now."""
    why = f"the shard of the key cannot be used now{_why_not([shard])}"
    return Unavailable(why, again_ms(shard.owner, now_ms))


def is_full(*numbers: int) -> str:
    """Return words for shards whose databases have no room."""
    return f"the database of shard {', '.join(map(str, numbers))} is full"


def _why_not(shards: Sequence[Shard]) -> str:
    if full := [shard.number for shard in shards if shard.owner.disk_full]:
        return f": {is_full(*full)}"
    return f": {READ_ONLY}" if any(shard.owner.read_only for shard in shards) else ""


def _no_room(healthy: Sequence[Shard], chunk: Chunk) -> Overloaded:
    if chunk.ruled and not any(shard.memory.takes_rules(chunk.keys) for shard in healthy):
        return too_many_rules()
    if any(shard.takes_lanes(chunk) for shard in healthy):
        return Overloaded("the host's buffers are full", RETRY_MS)
    return _too_many_lanes("each shard of the host", healthy[0])


def too_many_lanes(shard: Shard) -> Overloaded:
    """The refusal of items whose keys are in slots of `shard`, which has all lanes that it may have."""
    return _too_many_lanes("the shard of the key", shard)


def too_many_rules() -> Overloaded:
    why = f"the topic has {MOST_RULES} distinct sets of rules on a shard, the most that it may have at a time"
    return Overloaded(why, RETRY_MS)


def _too_many_lanes(where: str, shard: Shard) -> Overloaded:
    most = f"{shard.config.lanes:,} lanes (topics, fairness keys and sets of throttle keys)"
    return Overloaded(f"{where} has {most}, the most that host.lanes allows", RETRY_MS)


def nowhere(state: State, now_ms: int) -> Unavailable:
    retry_ms = min((again_ms(shard.owner, now_ms) for shard in state.serving), default=RETRY_MS)
    return Unavailable(f"no shard can take items now{_why_not(state.serving)}", retry_ms)


def most_bytes(state: State) -> int:
    """Return the most bytes of a chunk that any shard here may get."""
    return min([shard.queue.max_batch_bytes for shard in state.serving], default=1 << 20) // 2


def cut(sizes: Sequence[int], max_bytes: int) -> list[tuple[int, int, int]]:
    """Return (start, end, bytes) of consecutive parts of at most `_CHUNK_ROWS` items and `max_bytes`. One item always
    fits."""
    total = sum(sizes)
    if len(sizes) <= _CHUNK_ROWS and total <= max_bytes:
        return [(0, len(sizes), total)]
    parts, start, size = [], 0, 0
    for at, one in enumerate(sizes):
        if at > start and (at - start >= _CHUNK_ROWS or size + one > max_bytes):
            parts.append((start, at, size))
            start, size = at, 0
        size += one
    parts.append((start, len(sizes), size))
    return parts


def chunk_of(request: TakesIds, indices: Sequence[int], part: Sequence[Keyed], size_bytes: int) -> Chunk:
    """Return a chunk of items with keys, whose places in the request are `indices`."""
    chunk = Chunk(request, indices, [one.item for one in part], [one.lane for one in part], size_bytes)
    chunk.weights = {one.lane: one.weight for one in part if one.weight} or None
    chunk.ruled = any(rules_of(one.lane) is not None for one in part)
    chunk.members = any(one.item.batch for one in part)
    return chunk
