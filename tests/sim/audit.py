"""A host's memory compared with its shards' databases: counts, windows, places, leases, checkpoints, bytes.

Sound whenever every outcome the database knows was applied: call it for shards without an unsettled transaction and
without a trip that was carried out but not reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from foqs.buffers.reads import ListRead
from foqs.buffers.shard_batch import BatchResult, ShardBatch
from foqs.buffers.tail import MAX_BYTES
from foqs.engine.engine import Engine
from foqs.engine.listing import Listing
from foqs.engine.shard import Shard
from foqs.fairness.keys import LaneKey, TopicKey, is_plain
from foqs.item import KNOWN_BYTES, Item, Phase, Place
from foqs.prefetch.lane import Lane
from tests.sim.audit_turns import audit_turns
from tests.sim.memory_database import MemoryDatabase
from tests.sim.records import MemoryWrong, lane_of


def _same(what: str, about: Any, memory: Any, database: Any) -> None:
    if memory != database:
        raise MemoryWrong(f"{what} of {about}: memory {memory!r}, database {database!r}")


def audit(shard: Shard, db: MemoryDatabase) -> None:
    """Everything about one shard."""
    _same("epoch", shard, shard.owner.epoch, db.epoch)
    items_of: dict[int, int] = {}
    for body in db.items.values():
        items_of[body.lane] = items_of.get(body.lane, 0) + 1
    leased = Counter(row.lane for row in db.timer.values() if row.lease)
    unwritten = [
        item for item in shard.memory.known.values() if item.phase is Phase.LEASED and item.place is Place.READY
    ]
    leased.update(item.lane.number or 0 for item in unwritten)
    dead = {row.lane for row in db.failures.values()}
    if {item_id for item_id, body in db.items.items() if db.lanes[body.lane].topic.endswith(b".dlq")} != set(
        db.failures
    ):
        raise MemoryWrong(f"the dead letters are not those with a failure: {db.failures}")
    for number, row in db.lanes.items():
        lane = shard.memory.lane_numbers.get(number)
        if lane is None or not lane.stored:
            raise MemoryWrong(f"lane {row} is not known as stored: {lane}")
        _same("names", lane, lane.key, lane_of(row))
        _same("weight", lane, lane.weight, row.weight)
    for lane in shard.memory.lanes.values():
        _same("stored", lane, lane.stored, lane.number in db.lanes)
        if not (lane.total or lane.key in shard.memory.idle_lanes or shard.queue.in_flight or shard.queue.unsettled):
            raise MemoryWrong(f"{lane} is empty and would never be removed")
        _same("total", lane, lane.total, items_of.get(lane.number or 0, 0))
        _same("leased", lane, lane.leased, leased[lane.number or 0])
        if lane.number in dead and not lane.dead:
            raise MemoryWrong(f"{lane} has dead letters, and is not known to")
        _audit_lane(shard, lane, db)
    for item in shard.memory.known.values():
        _audit_item(shard, item, db)
    for item_id, item in shard.memory.written.items():
        if item.busy:
            continue
        if (
            shard.memory.known.get(item_id) is not item
            or item.phase is not Phase.LEASED
            or item.place is not Place.TIMER
        ):
            raise MemoryWrong(f"{item} is remembered as a written lease")
    _audit_tail(shard, db)
    _audit_scans(shard, db)


def _audit_tail(shard: Shard, db: MemoryDatabase) -> None:
    """Nothing is invisible: an unindexed item is known, and known items are leased, in a window or being changed."""
    for item_id in db.unindexed:
        if item_id not in shard.memory.known:
            raise MemoryWrong(f"item {item_id} has no row, and is not known")
    _same(
        "tail",
        shard,
        (shard.memory.tail.count, shard.memory.tail.bytes),
        (len(db.unindexed), sum(r.bytes for r in db.unindexed.values())),
    )
    _same("items of the tail", shard, shard.memory.tail.first(), min(db.unindexed, default=None))


def available(shard: Shard, lane: Lane, db: MemoryDatabase) -> list[tuple[int, int, int]]:
    """Keys of the lane's rows that may be handed out, in order: ready, not leased, no change under way."""
    known = shard.memory.known
    keys = []
    unindexed = [
        (row.priority, row.deliver_after_ms, row.id) for row in db.unindexed.values() if row.lane == lane.number
    ]
    for key in sorted([*db.order.get(lane.number or 0, ()), *unindexed]):
        item = known.get(key[2])
        if item is None or not (item.phase is Phase.LEASED or item.busy):
            keys.append(key)
    return keys


def lanes_of(shard: Shard, keys: Iterable[LaneKey]) -> list[Lane[Item]]:
    return [lane for key in keys if (lane := shard.memory.lanes.get(key)) is not None]


def _audit_lane(shard: Shard, lane: Lane, db: MemoryDatabase) -> None:
    may = available(shard, lane, db)
    _same("ready", lane, lane.ready, len(may))
    window = lane.window
    if window is None:
        return
    if window.more:
        may = [key for key in may if window.end is not None and key <= window.end]
    _same("window", lane, [entry[:3] for entry in window.entries], may)
    for entry in window.entries:
        item = entry[3]
        if shard.memory.known.get(item.id) is not item or item.phase is not Phase.WINDOW or item.key != entry[:3]:
            raise MemoryWrong(f"{item} is in the window of {lane} as {entry[:3]}")


def _audit_item(shard: Shard, item: Item, db: MemoryDatabase) -> None:
    body = db.items.get(item.id)
    if body is None:
        raise MemoryWrong(f"{item} is known but not in the database")
    _same("row", item, item.place, Place.TIMER if item.id in db.timer else Place.READY)
    _same("unindexed", item, item.unindexed, item.id in db.unindexed)
    _same("key", item, (item.priority, item.deliver_after_ms), (body.priority, body.deliver_after_ms))
    if item.in_flight is not None and shard.queue.in_flight is None:
        raise MemoryWrong(f"{item} has a change under way, but no trip is")
    if item.phase is Phase.IDLE and not item.busy:
        raise MemoryWrong(f"{item} is known for nothing")
    if item.busy:
        return
    if item.phase is Phase.LEASED and item.place is Place.TIMER:
        row = db.timer[item.id]
        _same("lease", item, (item.lease, item.lease_expires_at_ms), (row.lease, row.due_ms))
        if item.id not in shard.memory.written:
            raise MemoryWrong(f"{item} has a written lease outside the bound on them")
    if item.held < KNOWN_BYTES:
        raise MemoryWrong(f"{item} holds {item.held} bytes of the budget")


def _audit_scans(shard: Shard, db: MemoryDatabase) -> None:
    for scan, order, what in (
        (shard.queue.timers, db.due_order, "timer"),
        (shard.queue.ttls, db.expiry_order, "expiry"),
    ):
        if not order:
            continue
        first_ms = order[0][0]
        if first_ms < scan.from_ms:
            raise MemoryWrong(f"{what} row at {first_ms} is below the checkpoint of {scan}")
        if scan.scan is None and scan.next_ms > first_ms:
            raise MemoryWrong(f"{what} row at {first_ms} is not waited for by {scan}")


def audit_listed(batch: ShardBatch, result: BatchResult, db: MemoryDatabase) -> None:
    """An operator sees all ready items of a topic: those that are not leased have their rows."""
    refused = result.rejected or result.failed or result.known
    for listing in batch.reads[: 0 if refused else result.reads]:
        if not isinstance(listing, ListRead):
            continue
        unseen = [row.id for row in db.unindexed.values() if row.lane in listing.lanes and listing.state == "ready"]
        if unseen:
            raise MemoryWrong(f"a list of lanes {listing.lanes} lacks the items {unseen}")


def audit_budget(host: Engine, listings: list[Listing]) -> None:
    """Promise 8: the bytes taken from the budget are those that the known items and the open `listings` hold."""
    held = sum(listing._held_bytes for listing in listings)
    held += sum(item.held for shard in host.state.shards.values() for item in shard.memory.known.values())
    if host.state.budget.used_bytes != held:
        raise MemoryWrong(f"{host.state.budget} but known items and lists hold {held}")


def audit_topics(host: Engine) -> None:
    """The index of topics has the lanes of all open shards; counts by namespace and topic are those of the lanes."""
    lanes = {id(lane): lane for shard in host.state.serving for lane in shard.memory.lanes.values()}
    for key, topic in host.state.topics.items():
        found = topic.lanes()
        shards = [lane.term.shard for lane in found]
        if topic.turns is None:
            _same("order of lanes", topic, shards, [shard for shard in host.state.serving if shard in shards])
        else:
            audit_turns(topic, topic.turns, woken=not host.state.slices.long_work)
        _same("names", topic, topic.key, key)
        for lane in found:
            if (
                lanes.pop(id(lane), None) is None
                or lane.topic is not topic
                or lane.key not in lane.term.shard.memory.lanes
            ):
                raise MemoryWrong(f"{lane} is a lane of {topic}")
        _same("ready", topic, topic.ready, sum(lane.ready for lane in found))
        if not found and not host.state.slices.long_work:
            raise MemoryWrong(f"{topic} has no lane of an open shard")
    if lanes:
        raise MemoryWrong(f"{list(lanes.values())} are in no topic")
    for shard in host.state.serving:
        totals: dict[str, int] = {lane.topic.key[0]: 0 for lane in shard.memory.lanes.values()}
        for lane in shard.memory.lanes.values():
            totals[lane.topic.key[0]] += lane.total
        _same("items by namespace", shard, {**dict.fromkeys(totals, 0), **shard.memory.totals}, totals)
        _audit_tenant_lanes(shard)


def _audit_tenant_lanes(shard: Shard) -> None:
    """The numbers and the count of each topic's lanes beside its plain one."""
    numbers: dict[TopicKey, list[int]] = {}
    items: Counter[TopicKey] = Counter()
    for number, lane in shard.memory.lane_numbers.items():
        if not is_plain(lane.key):
            numbers.setdefault(lane.topic.key, []).append(number)
            items[lane.topic.key] += lane.total
    for key, lanes in shard.memory.tenants.items():
        _same("items by topic", shard, lanes.total, items[key])
        _same("number of lanes", shard, len(lanes), len(numbers[key]))
        known = [number for number in lanes.numbers if number in shard.memory.lane_numbers]
        _same("numbers of lanes", shard, known, numbers[key])
    _same("topics with tenants", shard, shard.memory.tenants.keys(), numbers.keys())


def audit_bounds(host: Engine) -> None:
    """Promise 8: every buffer has its bound."""
    for shard in host.state.shards.values():
        config = shard.config
        gone = len(shard.queue.in_flight.lanes_gone) if shard.queue.in_flight is not None else 0
        # One request may exceed the bound by its own size; lease ends and scans add to the callers' requests.
        for what, size, most in (
            ("changes", len(shard.queue.changes), config.pending_rows + len(shard.memory.known) + 200),
            ("look-ups", sum(len(waiting) for waiting in shard.queue.looks.values()), config.pending_rows + 200),
            ("inserts", shard.queue.chunk_rows, config.pending_rows + 2_000),
            (
                "written leases",
                sum(not (i.busy or i.awaited) for i in shard.memory.written.values()),
                config.leases + 100,
            ),
            ("lanes", len(shard.memory.lanes) - gone, config.lanes + 39),
            ("unindexed items", shard.memory.tail.count, config.tail_items),
            ("bytes of unindexed items", shard.memory.tail.bytes, MAX_BYTES),
        ):
            if size > most:
                raise MemoryWrong(f"{size} {what} on shard {shard.number}, bound {most}")
        for lane in shard.memory.lanes.values():
            if lane.window is not None and len(lane.window) > 2 * config.window_rows + 1:
                raise MemoryWrong(f"{lane} has a window of {len(lane.window)} rows, bound {config.window_rows}")
