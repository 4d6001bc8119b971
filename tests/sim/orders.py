"""Order keys, checked from the outside: the order in which items stand by the commits, and what consumers get of it.
And a host's memory of the turns, compared with the rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from foqs.buffers.pending_dedup import Keyed
from foqs.engine import dedup
from foqs.engine.calls import EnqueueCall
from foqs.engine.orders import HOME_BYTES, ITEM_BYTES, KEY_BYTES, OrderKey
from foqs.engine.shard import Shard
from foqs.errors import FoqsError, KeyElsewhere, NotServed
from foqs.fairness.keys import ORDERED
from foqs.ids import Dedup, first_id, order_digest, shard_of
from foqs.item import Item, Phase
from foqs.order import KeyHome, Order, OrderRow, Standing
from foqs.policies.topic_policy import TopicPolicy
from foqs.prefetch.lane import Lane
from foqs.rows import Batch, Body, LaneRow, NewOrdered
from tests.sim.memory_database import MemoryDatabase
from tests.sim.order_homes import audit_homes
from tests.sim.records import MemoryWrong, Record, Spec, broken
from tests.sim.requests import Request

if TYPE_CHECKING:
    from tests.sim.clients import Clients

PROMISE = 21


class Ordered:
    """`_orders`: of each stored item with an order key that is no dead letter, its order, as the commits imply it.
    `_keys`: the items of each key that stand in order, with their places. `_returned`: of items that came back with
    an earlier place, those that had been delivered by then and may be delivered once more before them."""

    def __init__(
        self,
        records: dict[int, Record],
        dbs: dict[int, MemoryDatabase],
        policies_of: Callable[[Record], list[TopicPolicy]],
        checks: Counter[str],
    ) -> None:
        self._records = records
        self._dbs = dbs
        self._policies_of = policies_of
        self._checks = checks
        self._orders: dict[int, Order] = {}
        self._keys: dict[bytes, dict[int, int]] = defaultdict(dict)
        self._members: dict[bytes, set[int]] = defaultdict(set)
        self._numbers: dict[
            int, tuple[int, int]
        ] = {}  # by shard: the next number before its last transaction, and after
        self._dead: dict[int, int] = {}  # places of dead letters
        self._returned: dict[int, set[int]] = {}
        self._stored: dict[tuple[int, bytes], list[tuple[int, int]]] = defaultdict(list)  # specs, ids by request, key

    # ------------------------------------------------------------------------------------- commits

    def committing(self, shard: int, batch: Batch, lanes: dict[int, LaneRow]) -> None:
        """A transaction is about to be applied. Its rows of `ordered` are those that its changes imply."""
        db, (_, last) = self._dbs[shard], self._numbers.get(shard, (1, 1))
        if batch.next_number != last:  # else it may be a part of the same transaction
            self._numbers[shard] = last, batch.next_number
        gone: list[OrderRow] = []
        new: list[OrderRow] = []
        for item in batch.inserts:
            self._insert(item)
        for item_id, order in self._changed(shard, db, batch, lanes):
            before = self._orders.get(item_id)
            if order == before:
                continue
            moved = {row[0]: row[1] for row in batch.moved}
            if before is not None:
                gone.append(OrderRow(before.digest, before.standing, before.place, item_id, db.items[item_id].lane))
            if order is not None:
                lane = moved.get(item_id, db.items[item_id].lane)
                new.append(OrderRow(order.digest, order.standing, order.place, item_id, lane))
            self._set(item_id, order)
        if sorted(batch.order_gone) != sorted(gone) or sorted(batch.order_new) != sorted(new):
            broken(PROMISE, f"ordered: {batch.order_gone} {batch.order_new} are written, not {gone} {new}")
        at = sorted((row.id, Order(row.digest, row.place, row.standing).pack()) for row in new)
        if sorted(batch.order_at_new) != at:
            broken(PROMISE, f"{batch.order_at_new} is written as `order_at`, not {at}")

    def _insert(self, item: object) -> None:
        if not isinstance(item, NewOrdered):
            return
        spec = self._records[item.id].spec
        digest = order_digest(*spec.key, spec.order)
        if item.key.decode() != spec.order or item.digest != digest:
            broken(PROMISE, f"{spec} is stored with the order key {item.key!r}")
        self._set(item.id, Order(digest, item.id, Standing.NEW if item.due_ms else Standing.IN_ORDER))
        self._checks["ordered"] += 1
        if not item.due_ms:
            others = self._stored[spec.request, digest]
            if any((other < spec.number) is not (other_id < item.id) for other, other_id in others):
                broken(PROMISE, f"{spec} is stored as {item.id}, further ones of its request as {others}")
            others.append((spec.number, item.id))

    def _set(self, item_id: int, order: Order | None) -> None:
        before = self._orders.pop(item_id, None)
        if before is not None:
            self._keys[before.digest].pop(item_id, None)
            self._members[before.digest].discard(item_id)
        if order is not None:
            if any(shard_of(other) != shard_of(item_id) for other in self._members[order.digest]):
                broken(PROMISE, f"{item_id} is stored, and {self._members[order.digest]} have its key")
            self._orders[item_id] = order
            self._members[order.digest].add(item_id)
            if order.standing == Standing.IN_ORDER:
                self._keys[order.digest][item_id] = order.place

    def _changed(
        self, shard: int, db: MemoryDatabase, batch: Batch, lanes: dict[int, LaneRow]
    ) -> Iterator[tuple[int, Order | None]]:
        """Yield items that the transaction changes, with the order that they have then."""
        dead, places, inserted = {row.id for row in batch.failure_new}, dict(batch.order_at_new), set()
        inserted.update(item.id for item in batch.inserts)
        for item_id in (*batch.item_gone, *(row.id for row in batch.ended_new)):
            self._dead.pop(item_id, None)
            if item_id in self._orders:
                yield item_id, None
        moved = set()
        for item_id, number, *_ in batch.moved:
            spec = self._records[item_id].spec
            moved.add(item_id)
            if not spec.order:
                continue
            if item_id in db.failures and item_id not in dead:
                row = lanes[number]
                digest = order_digest(row.ns.decode(), row.topic.decode(), spec.order)
                self._came_back(item_id, digest, db, batch)
                self._checks["order redriven"] += 1
                yield item_id, Order(digest, self._dead.pop(item_id))
            elif item_id in self._orders:
                self._dead[item_id] = self._orders[item_id].place
                yield item_id, None
        placed = {row[0]: row[2] for row in batch.placed}
        for row in batch.ready_new:
            if row.id in self._orders and row.id not in moved:
                yield row.id, self._ready(shard, row.id, db, batch, places.get(row.id))
        for timer in batch.timer_new:
            order = self._orders.get(timer.id)
            if order is None or timer.id in inserted:
                continue
            if timer.lease:
                if order.standing != Standing.IN_ORDER:
                    broken(PROMISE, f"{timer} is leased, and stands nowhere: {order}")
            elif timer.id in placed:
                if order.standing != Standing.NEW and (
                    timer.id not in db.timer or placed[timer.id] > db.items[timer.id].deliver_after_ms
                ):
                    yield timer.id, order._replace(standing=Standing.NEW)
                    self._checks["order put off"] += 1
            elif order.standing == Standing.NEW:
                broken(PROMISE, f"{timer} failed, and was not delivered: {order}")
            else:
                yield timer.id, self._retries(timer.id, order, places.get(timer.id))

    def _ready(self, shard: int, item_id: int, db: MemoryDatabase, batch: Batch, stored: bytes | None) -> Order:
        order = self._orders[item_id]
        if order.standing == Standing.IN_ORDER:
            return order
        if order.standing == Standing.RETRY:
            self._came_back(item_id, order.digest, db, batch)
            self._checks["order retried"] += 1
            return order._replace(standing=Standing.IN_ORDER)
        low, high = first_id(shard) + self._numbers[shard][0], first_id(shard) + batch.next_number
        place = Order.unpack(stored, item_id).place if stored is not None else 0
        taken = [item.id for item in batch.inserts] + [*self._keys[order.digest].values()]
        if not low <= place < high or place in taken:
            broken(PROMISE, f"item {item_id} enters at {place}, not between {low} and {high}, where {taken} are")
        self._checks["order entered"] += 1
        return Order(order.digest, place)

    def _retries(self, item_id: int, order: Order, stored: bytes | None) -> Order:
        """A policy of the last moments may have decided."""
        modes = {policy.order.on_failure for policy in self._policies_of(self._records[item_id])}
        self._checks["order waits"] += 1
        if modes == {"block"}:
            return order
        if modes == {"skip"} or stored is not None:
            self._checks["order skipped"] += 1
            return order._replace(standing=Standing.RETRY)
        return order

    def _came_back(self, item_id: int, digest: bytes, db: MemoryDatabase, batch: Batch) -> None:
        rows = [*(row for other in self._keys[digest] if (row := db.ready.get(other))), *batch.ready_new]
        self._returned[item_id] = {row.id for row in rows if row.attempt}

    # ------------------------------------------------------------------------------------- deliveries

    def leased(self, item: Item, db: MemoryDatabase) -> None:
        """A host that has the outcome of every transaction chose the item."""
        order = self._orders.get(item.id)
        if order is None:
            return
        if order.standing != Standing.IN_ORDER:
            broken(PROMISE, f"{item} is leased, and does not stand in its order: {order}")
        first = True
        for other, place in self._keys[order.digest].items():
            if other == item.id:
                continue
            row = db.timer.get(other)
            if row is not None and row.lease:
                broken(PROMISE, f"{item} is leased, and {row} of the same key is: {order}")
            if place < order.place:
                first = False
                if item.id not in self._returned.get(other, ()):
                    broken(PROMISE, f"{item} of {order} is leased before {other} at {place}: {self._records[other]}")
                self._returned[other].discard(item.id)
                self._checks["order once more"] += 1
        self._checks["order first"] += first
        self._checks["order chains"] += first and len(self._keys[order.digest]) > 1

    def delivered(self, item: Item, now_ms: int) -> None:
        """A consumer has it: no other one has an item of its key."""
        order = self._orders.get(item.id)
        for other in self._members[order.digest] if order is not None else ():
            record = self._records[other]
            if other != item.id and any(record.live(d, now_ms) for d in record.deliveries):
                broken(PROMISE, f"{item} is delivered, and a consumer has {other} of the same key: {record}")

    def audit(self, shard: int) -> None:
        """The rows of a shard are those that its commits imply."""
        db = self._dbs[shard]
        mine = {item_id: order for item_id, order in self._orders.items() if item_id in db.items}
        stored = {row.id: Order(row.digest, row.place, row.standing) for row in db.ordered.values()}
        if mine != stored:
            broken(PROMISE, f"shard {shard}: ordered has {stored}, not {mine}")

    def check_left(self) -> None:
        if self._orders or any(self._members.values()):
            broken(PROMISE, f"{self._orders} are left")


# --------------------------------------------------------------------------------------------- producers


def enqueue_ordered(clients: Clients, count: int, timeout_ms: int) -> None:
    """Items with order keys, in one request."""
    sim, rng = clients.sim, clients.rng
    topic, key = rng.choice(sim.profile.topics), rng.choice(sim.profile.order_keys)
    homes: dict[bytes, KeyHome | None] = {}
    digest = order_digest(*topic, key)
    homes[digest] = clients.homes.choose(digest)
    owner = sim.owners.get(clients.homes.shard(digest, homes[digest]))
    member = owner if owner is not None and rng.random() < 0.7 else clients.any_member()
    if member.engine.state.draining:
        return
    now_ms = member.now_ms
    specs: list[Spec] = []
    parts: list[Keyed] = []
    for at in range(count):
        if rng.random() < 0.2:
            topic = rng.choice(clients.topics_with(topic))
        spec, item = clients.new_item(topic, now_ms)
        spec.order, spec.request = key, clients.requests
        key = rng.choice(sim.profile.order_keys)
        made = NewOrdered.of(item, spec.order.encode(), order_digest(*topic, spec.order))
        size = len(item.payload) + len(item.metadata or b"") + len(item.headers or b"")
        if made.digest not in homes:
            homes[made.digest] = clients.homes.choose(made.digest)
        home = homes[made.digest]
        parts.append(Keyed(at, Dedup(made.digest, 0), made, spec.lane(topic), size, spec.weight, home=home))
        specs.append(spec)
    clients.requests += 1
    request = Request(clients, member, f"enqueue of ordered {[spec.number for spec in specs]}", timeout_ms)

    def reply(outcomes: list[int | FoqsError]) -> None:
        request.answered()
        sim.note("ordered", member.name, [o if isinstance(o, int) else o.code.name for o in outcomes])
        for part, spec, outcome in zip(parts, specs, outcomes, strict=True):
            if isinstance(outcome, KeyElsewhere):
                clients.homes.note(part.dedup.digest, outcome.home)
            sim.ledger.enqueue_answered(spec, outcome)

    sim.note("enqueue ordered", member.name, [(spec.number, spec.order) for spec in specs])
    call = EnqueueCall(count, reply)
    member.engine.state.deadlines.push(now_ms + timeout_ms, call)
    member.engine.state.alarm(now_ms + timeout_ms)
    for number, part in dedup.by_shard(member.neighbour.view.shards, parts).items():
        if away := dedup.place_taken(member.engine.state, call, number, part, now_ms):
            call.refused([one.at for one in away], NotServed())
            member.neighbour.moves.adopt()


# --------------------------------------------------------------------------------------------- memory


def turns_in(shard: Shard, lane: Lane[Item], db: MemoryDatabase) -> list[tuple[int, int, int]]:
    """Return the keys of the lane's items that have their turn and no row in `timer`, in order."""
    turns = [key.turn for key in shard.memory.orders.keys.values() if key.turn]
    bodies = [db.items[turn] for turn in turns if turn in db.items and turn not in db.timer]
    return sorted((body.priority, body.deliver_after_ms, body.id) for body in bodies if body.lane == lane.number)


def audit_orders(shard: Shard, db: MemoryDatabase) -> None:
    """What a host remembers of the order keys of a shard, if it has the outcome of every transaction."""
    orders = shard.memory.orders
    chains: dict[bytes, list[OrderRow]] = defaultdict(list)
    for row in sorted(db.ordered.values(), key=lambda row: row.place):
        if row.standing == Standing.IN_ORDER:
            chains[row.digest].append(row)
    behind = Counter(row.lane for row in db.ordered.values() if row.standing == Standing.IN_ORDER)
    flight = shard.queue.in_flight
    for digest, key in orders.keys.items():
        turn = next((row for row in chains[digest] if row.id == key.turn), None)
        if turn is not None:
            behind[turn.lane] -= 1
        elif key.turn:
            raise MemoryWrong(f"{key.turn} at {key.place} has the turn of its key, which has {chains[digest]}")
        if digest <= orders.read_to:
            _audit_key(shard, digest, key, chains[digest], read=digest in orders.wanted or flight is not None)
        elif turn is None or turn.id not in db.timer or key.behind:
            raise MemoryWrong(f"a key that was not read yet has {key.turn} and {key.behind}")
    for digest, rows in chains.items():
        if rows and digest <= orders.read_to and digest not in orders.keys:
            raise MemoryWrong(f"the key of {rows} is not known")
    for lane in shard.memory.lanes.values():
        expected = behind[lane.number or 0] if lane.until == ORDERED else 0
        if lane.behind != expected:
            raise MemoryWrong(f"{lane} has {lane.behind} items behind earlier ones, the database {expected}")
    audit_homes(shard, db)
    items = len(orders.away) + sum(len(key.behind) for key in orders.keys.values())
    expected = KEY_BYTES * len(orders.keys) + ITEM_BYTES * items + HOME_BYTES * len(orders.elsewhere)
    if orders._held_bytes != expected:
        raise MemoryWrong(f"order keys hold {orders._held_bytes} bytes, for {len(orders.keys)} keys and {items} items")


def _audit_key(shard: Shard, digest: bytes, key: OrderKey, rows: list[OrderRow], *, read: bool) -> None:
    orders, known = shard.memory.orders, shard.memory.known
    if not key.turn and not (key.more and read):
        raise MemoryWrong(f"no item has the turn of {digest.hex()}: {key.behind} {rows}")
    others = [row for row in rows if row.id != key.turn]
    if key.more:
        others = [row for row in others if row.place <= key.known_to]
    found = [(item.id, item.order and item.order.place) for item in key.behind]
    if found != [(row.id, row.place) for row in others]:
        raise MemoryWrong(f"behind {key.turn} are {found}, more {key.more} than {key.known_to}, not {others}")
    turn, away = known.get(key.turn), orders.away.get(key.turn)
    if away is not None and (turn is not None or away.phase is not Phase.IDLE or away.unindexed):
        raise MemoryWrong(f"{away} is away, and known as {turn}")


def visible(shard: Shard, db: MemoryDatabase) -> None:
    """An item that has its turn is in memory, or a page or a scan finds it."""
    for key in shard.memory.orders.keys.values():
        if key.turn and key.turn not in shard.memory.known and not (key.turn in db.timer or key.turn in db.ready):
            raise MemoryWrong(f"item {key.turn} has its turn, and no row, and is not known")
        found = key.turn in shard.memory.known or key.turn in shard.memory.orders.away
        if key.turn in db.ready and not found:
            raise MemoryWrong(f"item {key.turn} has its turn, and no page would find it")


def same_key(given: Body | NewOrdered | object, spec: Spec) -> bool:
    """Whether a delivered body has the order key of the spec."""
    return (getattr(given, "order_key", None) or b"") == spec.order.encode()
