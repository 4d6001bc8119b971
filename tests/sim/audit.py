"""A host's memory compared with its shards' databases: counts, windows, places, leases, checkpoints, bytes.

Sound whenever every outcome the database knows was applied: call it for shards without an unsettled transaction and
without a trip that was carried out but not reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from foqs.buffers.reads import ListRead
from foqs.buffers.shard_batch import BatchResult, ShardBatch
from foqs.buffers.tail import MAX_BYTES
from foqs.engine.dead_orders import DEAD_BYTES
from foqs.engine.engine import Engine
from foqs.engine.listing import Listing
from foqs.engine.shard import Shard
from foqs.fairness.keys import ORDERED, LaneKey, TopicKey, is_plain, tenancy_of, topic_key
from foqs.fairness.tenants import DOWN, HELD, QUEUED, SKIPPED, Tenant
from foqs.fairness.topics import Topic
from foqs.fairness.turns import Turns
from foqs.item import KNOWN_BYTES, Item, Phase, Place
from foqs.prefetch.lane import Lane
from tests.sim.memory_database import MemoryDatabase
from tests.sim.memory_store import counts_of_ends
from tests.sim.orders import audit_orders, turns_in, visible
from tests.sim.records import MemoryWrong, lane_of


def _same(what: str, about: Any, memory: Any, database: Any) -> None:
    if memory != database:
        raise MemoryWrong(f"{what} of {about}: memory {memory!r}, database {database!r}")


def audit(shard: Shard, db: MemoryDatabase) -> None:
    """Everything about one shard."""
    _same("epoch", shard, shard.owner.epoch, db.epoch)
    items_of = Counter([body.lane for body in db.items.values() if body.id not in db.ended])
    _audit_kept(shard, db)
    leased = Counter(row.lane for row in db.timer.values() if row.lease)
    unwritten = [
        item for item in shard.memory.known.values() if item.phase is Phase.LEASED and item.place is Place.READY
    ]
    leased.update(item.lane.number or 0 for item in unwritten)
    dead = {row.lane for row in db.failures.values()}
    of_dead = {number for number, row in db.lanes.items() if row.topic.endswith(b".dlq")}
    living = db.items.keys() - db.ended
    letters = [item_id for item_id in living if db.items[item_id].lane in of_dead] if of_dead else []
    if db.failures.keys() != set(letters):
        raise MemoryWrong(f"the dead letters are not those with a failure: {db.failures}")
    for number, row in db.lanes.items():
        lane = shard.memory.lane_numbers.get(number)
        if lane is None or not lane.stored:
            raise MemoryWrong(f"lane {row} is not known as stored: {lane}")
        _same("names", lane, lane.key, lane_of(row))
        _same("weight", lane, lane.weight, row.weight)
    for lane in shard.memory.lanes.values():
        _same("stored", lane, lane.stored, lane.number in db.lanes)
        kept = lane.number in shard.queue.kept.lanes
        idle = kept or lane.key in shard.memory.idle_lanes
        if not (lane.total or idle or shard.queue.in_flight or shard.queue.unsettled):
            raise MemoryWrong(f"{lane} is empty and would never be removed")
        _same("total", lane, lane.total, items_of[lane.number or 0])
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
    audit_orders(shard, db)
    visible(shard, db)
    _audit_scans(shard, db)


def _audit_kept(shard: Shard, db: MemoryDatabase) -> None:
    """Counts of items that have ended, and their bound unless more of them are about to be removed."""
    kept = shard.queue.kept
    _same("kept items", shard, kept.lanes, counts_of_ends(db.ended.values()))
    topics = Counter(topic_key(lane_of(db.lanes[row.lane])) for row in db.ended.values())
    _same("kept items by topic", shard, kept.topics, topics)
    if kept.unsent or kept.grown or shard.queue.in_flight or shard.queue.unsettled:
        return
    for topic, count in kept.topics.items():
        keep = shard.policies.of(topic).keep
        if keep is not None and count > keep.most and topic not in kept.oldest_wanted:
            raise MemoryWrong(f"{count} items of {topic} are kept, more than {keep.most}")


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


def available(shard: Shard, lane: Lane, db: MemoryDatabase) -> Iterator[tuple[int, int, int]]:
    """Yield the keys of the lane's rows that may be delivered, in order: ready, not leased, without a change."""
    keys = db.order.get(lane.number or 0, [])
    if lane.until == ORDERED:
        keys = turns_in(shard, lane, db)
    elif db.unindexed:
        unindexed = [
            (row.priority, row.deliver_after_ms, row.id) for row in db.unindexed.values() if row.lane == lane.number
        ]
        keys = sorted([*keys, *unindexed])
    known = shard.memory.known.get
    return (key for key in keys if (item := known(key[2])) is None or not (item.phase is Phase.LEASED or item.busy))


def lanes_of(shard: Shard, keys: Iterable[LaneKey]) -> list[Lane[Item]]:
    return [lane for key in keys if (lane := shard.memory.lanes.get(key)) is not None]


def _audit_lane(shard: Shard, lane: Lane, db: MemoryDatabase) -> None:
    may = list(available(shard, lane, db))
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
    place = Place.TIMER if item.id in db.timer else Place.READY
    unindexed = item.id not in db.ready and place is Place.READY if item.order else item.id in db.unindexed
    row = (place, unindexed, body.priority, body.deliver_after_ms)
    _same("row, tail and key", item, (item.place, item.unindexed, item.priority, item.deliver_after_ms), row)
    if item.in_flight is not None and shard.queue.in_flight is None:
        raise MemoryWrong(f"{item} has a change under way, but no trip is")
    if item.phase is Phase.IDLE and not item.busy:
        raise MemoryWrong(f"{item} is known for nothing")
    if item.busy:
        return
    if item.phase is Phase.LEASED and item.place is Place.TIMER:
        timer = db.timer[item.id]
        _same("lease", item, (item.lease, item.lease_expires_at_ms), (timer.lease, timer.due_ms))
        if item.id not in shard.memory.written:
            raise MemoryWrong(f"{item} has a written lease outside the bound on them")
    if item.held < KNOWN_BYTES:
        raise MemoryWrong(f"{item} holds {item.held} bytes of the budget")


def _audit_scans(shard: Shard, db: MemoryDatabase) -> None:
    for scan, order, what in (
        (shard.queue.timers, db.due_order, "timer"),
        (shard.queue.ttls, db.expiry_order, "expiry"),
        (shard.queue.kept.scan, db.ended_order, "ended"),
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
    """Promise 8: the bytes taken from the budget are those that the known items, their progress and the open
    `listings` hold."""
    held = sum(listing._held_bytes for listing in listings)
    held += sum(item.held for shard in host.state.shards.values() for item in shard.memory.known.values())
    held += sum(shard.memory.orders._held_bytes for shard in host.state.shards.values())
    held += sum(DEAD_BYTES * len(shard.memory.orders.dead.items) for shard in host.state.shards.values())
    held += sum(one.row.size_bytes for shard in host.state.shards.values() for one in shard.queue.progress.values())
    if host.state.budget.used_bytes != held:
        raise MemoryWrong(f"{host.state.budget} but known items and lists hold {held}")


def audit_topics(host: Engine) -> None:
    """The index of topics has the lanes of all open shards; counts by namespace and topic are those of the lanes."""
    lanes = {id(lane): lane for shard in host.state.serving for lane in shard.memory.lanes.values()}
    for key, topic in host.state.topics.items():
        found = topic.lanes()
        shards = [lane.term.shard for lane in found]
        if topic.turns is None:
            _same("order of lanes", topic, list(dict.fromkeys(shards)), [s for s in host.state.serving if s in shards])
        else:
            _audit_turns(topic, topic.turns, woken=not host.state.slices.long_work)
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
    namespaces = Counter(ns for ns, _ in host.state.topics)
    for key, topic in host.state.topics.items():
        _same("topics of its namespace", topic, topic.traffic.topics, namespaces[key[0]])
        _same("counts of its namespace", topic, host.state.topics.rates._known.get(key[0]), topic.traffic)
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


# --------------------------------------------------------------------------------------------- turns of tenants


def _audit_turns(topic: Topic[Any], turns: Turns[Any], *, woken: bool) -> None:
    """Each tenant is in one place alone, and takes turns if an item of it waits for nothing, once the lanes of all
    shards are `woken`."""
    _audit_counts(topic, turns)
    entries = _entries(turns)
    for name, tenant in turns.tenants.items():
        flows = list(tenant.flows.values())
        if tenant.name != name or not flows:
            raise MemoryWrong(f"{tenant} of {topic} is known as {name!r}, with {flows}")
        places = (entries[tenant], tenant in turns.skipped, tenant in turns.down)
        if places != (tenant.away == QUEUED, tenant.away == SKIPPED, tenant.away == DOWN):
            raise MemoryWrong(f"{tenant} of {topic} is in the places {places}")
        unparked = any(flow.ready and flow.parked is None for flow in flows)
        if (tenant.away == HELD) is not (name in turns.held):
            raise MemoryWrong(f"{tenant} of {topic}, and {sorted(turns.held)} are held")
        if woken and unparked and tenant.away not in (QUEUED, SKIPPED, DOWN, HELD):
            raise MemoryWrong(f"{tenant} of {topic} takes no turn, and has {flows}")
    standing = (*entries, *turns.skipped, *turns.down)
    strays = [tenant for tenant in standing if turns.tenants.get(tenant.name) is not tenant]
    if strays or turns._passed:
        raise MemoryWrong(f"{strays} of {topic} are gone, {turns._passed} are passed over")


def audit_parked(host: Engine) -> None:
    """Each parked flow is in the heap of its throttle key, which wakes it, and in no other."""
    if host.state.slices.long_work:
        return
    found: dict[Any, Any] = {}
    gates = [
        gate for shard in host.state.serving for book in shard.memory.limited.values() for gate in book.gates.values()
    ]
    for key in [*host.state.throttling.keys.values(), *gates]:
        for about, parking in key.parked():
            if not parking or parking.items != sum(entry[1] for entry in parking._parked.values()):
                raise MemoryWrong(f"{parking} of {about} on {key} has {parking._parked}")
            for flow in parking:
                if flow.lanes and flow.ready and flow.parked is not key:
                    raise MemoryWrong(f"{flow} is in the heap of {key}")
                found[flow] = key
    turns = [topic.turns for topic in host.state.topics.values() if topic.turns is not None]
    for flow in [flow for one in turns for tenant in one.tenants.values() for flow in tenant.flows.values()]:
        if flow.parked is not None and found.get(flow) is not flow.parked:
            raise MemoryWrong(f"{flow} is parked, and in the heap of {found.get(flow)}")


def _audit_counts(topic: Topic[Any], turns: Turns[Any]) -> None:
    counted: dict[Any, tuple[int, int, int]] = {}
    for tenant in turns.tenants.values():
        for throttles, flow in tenant.flows.items():
            if flow.tenant is not tenant or flow.throttles != throttles or not flow.lanes:
                raise MemoryWrong(f"{flow} is a flow of {tenant}, for {throttles}")
            for lane in flow.lanes:
                if lane.flow is not flow or lane.topic is not topic or tenancy_of(lane.key) != (tenant.name, throttles):
                    raise MemoryWrong(f"{lane} is a lane of {flow} of {topic}")
                lanes, ready, parked = counted.get(lane.term, (0, 0, 0))
                parked += lane.ready if flow.parked is not None or tenant.away == HELD else 0
                counted[lane.term] = (lanes + 1, ready + lane.ready, parked)
    kept = {term: (tally.lanes, tally.ready, tally.parked) for term, tally in turns.tallies.items()}
    if kept != counted:
        raise MemoryWrong(f"tallies of {topic}: {list(kept.values())}, its lanes {list(counted.values())}")


def _entries(turns: Turns[Any]) -> Counter[Tenant[Any]]:
    """Return how many valid entries each tenant has."""
    found: Counter[Tenant[Any]] = Counter()
    listed = {id(level) for _, level in turns._ranks}
    for rank, level in list(turns._levels.items()):
        every = [(seq, tenant) for _, seq, tenant in level.heap] + list(level.newcomers)
        valid = [tenant for seq, tenant in every if tenant.seq == seq]
        if any(tenant.level is not level for tenant in valid) or level.rank != rank:
            raise MemoryWrong(f"{valid} are in the level of rank {rank}")
        if valid and not (level.listed and id(level) in listed):
            raise MemoryWrong(f"the level of rank {rank} has {valid}, and takes no turns")
        if len(every) - len(valid) != level.stale:
            raise MemoryWrong(f"{len(every) - len(valid)} entries of rank {rank} are stale, not {level.stale}")
        found.update(valid)
    return found
