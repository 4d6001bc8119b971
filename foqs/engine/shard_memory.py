"""The items of one shard that are in memory: its lanes, their windows, and all items that are known by id."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from foqs.bounds import Budget
from foqs.buffers.shard_batch import Chunk
from foqs.buffers.tail import Tail
from foqs.config.schema import HostSection
from foqs.counters import Counters
from foqs.engine.endings import Awaited
from foqs.engine.orders import Orders
from foqs.engine.shard_queue import ShardQueue
from foqs.fairness.keys import (
    ORDERED,
    LaneKey,
    TopicKey,
    has_members,
    is_plain,
    lane_key,
    rules_of,
    tenancy_of,
    topic_key,
    until_of,
)
from foqs.fairness.topics import TenantLanes, Topics
from foqs.item import KNOWN_BYTES, Cause, Change, Item, Phase, Place, To, body_bytes, from_ready
from foqs.prefetch.lane import Entry, Lane, Window
from foqs.prefetch.residents import WINDOW_SHARE, Residents
from foqs.rows import AT_MOST_ONCE, Body, NewItem, NewOrdered, ReadyRow
from foqs.rules import MOST_RULES, ItemRules

FIRST_PAGE_ROWS = 128
_MERGED = 256
"""Lanes in which the items before a new one are counted, for its ledger. A tenant with more of them has no count."""
# Members of enums, bound once for the hot path.
_READY, _WINDOW = Place.READY, Phase.WINDOW


class ShardMemory:
    """Invariant: an id is in `known` while its item is in a window, leased (unless its written lease was dropped from
    memory), or has a change waiting or in flight; a page row with a known id is skipped. An unindexed item is in one of
    these states: one that leaves its window gets a change that writes its row."""

    def __init__(
        self, config: HostSection, topics: Topics[Lane[Item]], residents: Residents, budget: Budget,
        counters: Counters, queue: ShardQueue, awaited: Awaited,
    ) -> None:  # fmt: skip
        self.config = config
        self.topics = topics
        self.residents = residents
        self.budget = budget
        self.counters = counters
        self.queue = queue
        self.awaited = awaited
        self.forget_items()

    def forget_items(self) -> None:
        """Begin with nothing in memory. The lanes of an earlier term are the caller's to detach."""
        self.term = self.topics.term(None)
        self.known: dict[int, Item] = {}
        self.tail = Tail(self.known)
        self.written: dict[int, Item] = {}  # items with a written lease, the longest unchanged first
        self.lanes: dict[LaneKey, Lane[Item]] = {}
        self.totals: defaultdict[str, int] = defaultdict(int)  # items in any state, by namespace
        self.lane_numbers: dict[int, Lane[Item]] = {}
        self.tenants: dict[TopicKey, TenantLanes] = {}  # of the topics that have more than their plain lane
        self.rules: dict[TopicKey, dict[ItemRules, set[Lane[Item]]]] = {}  # the lanes of a topic with each set of rules
        self.dead_lanes: set[int] = set()  # numbers of lanes that are `dead`
        self.idle_lanes: dict[LaneKey, Lane[Item]] = {}
        self.woken: dict[TopicKey, None] = {}  # topics whose waiting consumers are tried next
        self.unleased: list[str] = []  # workers that gave back items at once; each of these woke its topic
        self.stalled: dict[TopicKey, None] = {}  # topics that were asked for while this shard could lease nothing
        self.holding = False  # some items may hold keys until they start or are done
        self.members = False  # some items may belong to batches
        self.noted: dict[int, int] = {}  # items that have or get a row in `progress`; the bytes of their checkpoints
        self.limited: dict[str, Any] = {}  # by namespace: see `foqs.engine.concurrency`
        self.ordering = False  # some items may have order keys
        self.orders = Orders(self, self.budget)

    def configure(self, config: HostSection) -> None:
        self.config = config

    def shift(self, by_ms: int) -> None:
        """Follow the host's clock, which was set by `by_ms`."""
        for item in self.known.values():
            if item.given is not None:
                at_ms, extended_ms = item.given.at_ms + by_ms, item.given.extended_ms + by_ms
                item.given = item.given._replace(at_ms=at_ms, extended_ms=extended_ms)

    def abandon(self) -> None:
        """Give back the memory of all items. The lanes count no more."""
        for item in self.known.values():
            item.abandon()
            self.give(item)
        self.queue.progress.drop(self.budget)
        self.orders.drop()
        self.term.shard = None

    # ------------------------------------------------------------------------------------- topics to try

    def take_woken(self, most: int) -> dict[TopicKey, None]:
        """Take out topics whose consumers are tried now, `most` at a time."""
        woken = self.woken
        if len(woken) <= most:
            self.woken = {}
            return woken
        part = dict.fromkeys(islice(woken, most))
        for key in part:
            del woken[key]
        return part

    def stall(self) -> None:
        """Try the topics that woke when the shard may lease items again."""
        self.stalled.update(self.woken)
        self.woken = {}

    def resume(self) -> dict[TopicKey, None]:
        """Wake the topics that were stalled, and return them."""
        stalled, self.stalled = self.stalled, {}
        self.woken.update(stalled)
        return stalled

    def take_unleased(self) -> list[str]:
        unleased, self.unleased = self.unleased, []
        return unleased

    # ------------------------------------------------------------------------------------- lanes

    def lane(self, key: LaneKey) -> Lane[Item]:
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.add_lane(key, None)
        return lane

    def add_lane(self, key: LaneKey, number: int | None) -> Lane[Item]:
        """Add a lane that is not in `lanes`."""
        topic = self.topics.of(topic_key(key))
        rules = rules_of(key)
        key = lane_key(
            topic.key, *tenancy_of(key), rules, until_of(key), has_members(key)
        )  # with the topic's own names
        namespace = self.counters.namespaces.of(topic.key[0])
        lane = self.lanes[key] = Lane(key, topic, self.term, number, namespace, stored=number is not None)
        self.topics.attach(topic, lane)
        lane.until, lane.members = until_of(key), has_members(key)
        lane.linked = lane.until > 0 or lane.members
        self.members = self.members or lane.members
        if lane.until == ORDERED:
            topic.ordered = self.ordering = True
        else:
            self.holding = self.holding or lane.until > 0
        if rules is not None:
            self.rules.setdefault(topic.key, {}).setdefault(rules, set()).add(lane)
        return lane

    def hold(self) -> None:
        """Note that an item of a lane without `until` frees its key."""
        self.holding = True

    def wake_lane(self, lane: Lane[Item], *, opened: bool = False) -> None:
        """Note that items of the lane became ready or came into memory. `opened`: its shard was just opened."""
        self.woken[lane.topic.key] = None
        if lane.flow is not None:
            lane.flow.wake(opened=opened)

    def number_lane(self, lane: Lane[Item], number: int) -> None:
        """Give the lane its number, which is higher than all before."""
        lane.number = number
        self.lane_numbers[number] = lane
        if not is_plain(lane.key):
            tenants = self.tenants.get(lane.topic.key)
            if tenants is None:
                tenants = self.tenants[lane.topic.key] = TenantLanes()
            tenants.add(number)
            lane.tenants = tenants

    def adopt(self, filled: ShardMemory, shard: object) -> None:
        """Take over the lanes of `filled`, which count from now on as lanes of `shard`."""
        self.term, self.lanes, self.lane_numbers = filled.term, filled.lanes, filled.lane_numbers
        self.totals, self.tenants, self.rules = filled.totals, filled.tenants, filled.rules
        self.holding, self.ordering, self.members = filled.holding, filled.ordering, filled.members
        self.dead_lanes, self.idle_lanes = filled.dead_lanes, filled.idle_lanes
        self.term.shard = shard

    def count_items(self, lane: Lane[Item], more: int) -> None:
        """Count `more` items in the lane's namespace and among its tenants. `lane.total` is the caller's."""
        self.totals[lane.topic.key[0]] += more
        if lane.tenants is not None:
            lane.tenants.total += more

    def forget_lane(self, lane: Lane[Item]) -> None:
        """Forget a lane without a row and without items."""
        self.residents.discard(lane)
        if lane.number is not None:
            known = self.lane_numbers.pop(lane.number, None) is not None
            self.dead_lanes.discard(lane.number)
            if known and lane.tenants is not None:
                lane.tenants.remove(self.lane_numbers)
                if not lane.tenants:
                    del self.tenants[lane.topic.key]
        if self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]
            if not self.totals[ns := lane.topic.key[0]]:
                del self.totals[ns]
            self.topics.detach(lane.topic, lane)
            if (rules := rules_of(lane.key)) is not None:
                self._forget_rules(lane, rules)

    def _forget_rules(self, lane: Lane[Item], rules: ItemRules) -> None:
        sets = self.rules[lane.topic.key]
        sets[rules].discard(lane)
        if not sets[rules]:
            del sets[rules]
            if not sets:
                del self.rules[lane.topic.key]

    def takes_rules(self, keys: Iterable[LaneKey]) -> bool:
        """Return True if the lanes of an enqueue bring no topic to more than `MOST_RULES` distinct sets of rules. Sets
        without items do not count; their lanes may stay for a while."""
        new: dict[TopicKey, set[ItemRules]] = {}
        for key in keys:
            if (rules := rules_of(key)) is not None:
                new.setdefault(topic_key(key), set()).add(rules)
        return all(self._has_room_for(self.rules[topic], sets) for topic, sets in new.items() if topic in self.rules)

    def _has_room_for(self, known: Mapping[ItemRules, Collection[Lane[Item]]], new: Collection[ItemRules]) -> bool:
        if len(known) + len(new) <= MOST_RULES:
            return True
        kept = self.queue.kept.lanes
        used = {
            rules
            for rules, lanes in known.items()
            if any(lane.total or not lane.stored or lane.number in kept for lane in lanes)
        }
        return len(used.union(new)) <= MOST_RULES or used.issuperset(new)

    def note_dead(self, lane: Lane[Item]) -> None:
        """Note that the lane has an item with a failure."""
        assert lane.number is not None, "a stored item's lane has a number"
        lane.dead = True
        self.dead_lanes.add(lane.number)

    def idle_lane(self, lane: Lane[Item], now_ms: int) -> None:
        """Note that the lane has no item. Drop a tenant's window, which takes half the bytes of its lane."""
        if lane.number in self.queue.kept.lanes:
            return  # its row stays, until the last of these items is removed
        lane.empty_since_ms = now_ms
        if lane.tenants is not None and lane.window is not None:
            self.drop_window(lane)
        if lane.key in self.idle_lanes:  # the longest idle comes first
            del self.idle_lanes[lane.key]
        self.idle_lanes[lane.key] = lane

    def longest_empty(self) -> Lane[Item] | None:
        """Return the lane that has been empty for the longest time, None if all lanes have items."""
        idle = self.idle_lanes
        while idle:
            lane = next(iter(idle.values()))
            if not lane.total:
                return lane
            del idle[lane.key]
        return None

    def count_gone(self, lane: Lane[Item], now_ms: int) -> None:
        lane.total -= 1
        self.count_items(lane, -1)
        if not lane.total:
            self.idle_lane(lane, now_ms)

    # ------------------------------------------------------------------------------------- windows

    def stored(self, chunks: Sequence[Chunk]) -> None:
        """Add the committed inserts of `chunks` to the windows that cover them, and settle their requests. A page or
        scan finds an insert that no window covers."""
        unindexed: list[int] = []
        tail_bytes = 0
        for chunk in chunks:
            keys, items = chunk.keys, chunk.items
            alike = len(keys) == 1 or (keys and keys.count(keys[0]) == len(keys))
            for key, news in ((keys[0], items),) if alike else chunk.by_lane().items():
                lane = self.lanes.get(key) or self.add_lane(key, None)
                lane.total += len(news)
                lane.namespace.enqueued += len(news)
                topic = lane.topic
                (topic.counters or topic.counted()).enqueued += len(news)
                topic.traffic.enqueued += len(news)
                self.totals[lane.topic.key[0]] += len(news)  # `count_items`
                if lane.tenants is not None:
                    lane.tenants.total += len(news)
                ready = [new for new in news if not new.due_ms] if chunk.delays else news
                if ready and not chunk.ordered:
                    tail_bytes += self._add_new(ready, lane, unindexed)
            if chunk.ordered:
                for key, new in zip(keys, items, strict=True):  # items of one order key may have several lanes
                    if not new.due_ms:
                        assert isinstance(new, NewOrdered), "the items of the chunk have order keys"
                        self.orders.stored(new, self.lanes[key])
                if chunk.homes is not None:
                    self.orders.are_here(items, chunk.homes)
        if unindexed:
            self.tail.add(sorted(unindexed), tail_bytes)
        for chunk in chunks:
            chunk.request.stored(chunk.indices, chunk.items)

    def _add_new(self, news: list[NewItem], lane: Lane[Item], unindexed: list[int]) -> int:
        """Add new items of one request that are ready. Add the ids of the unindexed ones to `unindexed`, which the
        caller adds to the tail in order, and return the bytes of these."""
        # Items of one request that are ready at once have the same time.
        lane.add_ready(news[0].deliver_after_ms, len(news))
        self.woken[lane.topic.key] = None  # from here on, `_window`
        if lane.flow is not None:
            lane.flow.wake()
        window = lane.window
        if window is None:
            if lane.ready != len(news):
                self._index_new(news, lane)
                return 0
            window = self._new_window(lane, complete=True)
        known, held, tail_bytes = self.known, 0, 0
        entries: list[Entry[Item]] = []
        for new in news:
            if window.more and not window.covers((new.priority, new.deliver_after_ms, new.id)):
                self._index_new([new], lane)
                continue
            size = len(new.payload)
            if new.metadata is not None or new.headers is not None:
                size += len(new.metadata or b"") + len(new.headers or b"")
            item = Item(new.id, lane, new.priority, new.deliver_after_ms, 0, 0, size, None, _READY, _WINDOW)
            # `Item.set_body`, which would compute the size again.
            item.body = new
            item.at_most_once = new.delivery == AT_MOST_ONCE
            item.expires_at_ms = new.expires_at_ms
            item.held = size + KNOWN_BYTES
            held += item.held
            known[new.id] = item
            entries.append((new.priority, new.deliver_after_ms, new.id, item))
            if new.unindexed:
                item.unindexed = True
                unindexed.append(new.id)
                tail_bytes += size
        budget = self.budget
        budget.used_bytes += held  # `take`
        if len(entries) == 1:
            insort(window.entries, entries[0])
        else:
            window.add_all(entries)
        if self.topics.ledgers:
            self._became_ready(lane, entries)
        if len(window.entries) > self.config.window_rows or budget.used_bytes > budget.limit_bytes * WINDOW_SHARE:
            self.bound_window(window)
        return tail_bytes

    def _index_new(self, news: list[NewItem], lane: Lane[Item]) -> None:
        """Index the unindexed items of `news`: the window that covered them was cut before they were stored."""
        for new in news:
            if new.unindexed:
                item = Item(new.id, lane, new.priority, new.deliver_after_ms, 0, 0, 0, new)
                item.unindexed = True
                self.tail.add([item.id], item.bytes)
                self.index(item)

    def index(self, item: Item) -> None:
        """Write the row of an unindexed item that its window does not cover. It may be leased again after that."""
        item.lane.remove_ready(item.deliver_after_ms)
        self.learn(item)
        self.drop_body(item)
        change = Change(item, To.READY, Cause.INDEX)
        item.queue(change)
        self.queue.index_rows.append(change)
        self.queue.touch()

    def recover(self, tail: Iterable[ReadyRow]) -> None:
        """Take over the unindexed items of the owner before. An item of a lane with older rows has to wait for its own
        row: pages come from the lane's first row on."""
        for row in tail:
            lane = self.lane_numbers[row.lane]
            item = from_ready(row, lane, None)
            item.unindexed = True
            self.tail.add([row.id], row.bytes)
            lane.total += 1
            self.count_items(lane, 1)
            self.enter_ready(item)

    def enter_ready(self, item: Item) -> None:
        """Note that the item may be leased (again); one with an order key, when its turn comes."""
        if item.order is None or self.orders.enters(item):
            self.enter_turn(item)
        else:
            self.forget(item)

    def enter_turn(self, item: Item) -> None:
        """Note that the item may be leased: if it has an order key, it has its turn."""
        lane = item.lane
        lane.add_ready(item.deliver_after_ms)
        window = self._window(lane, 1)
        self.forget(item)
        if window is not None and window.covers(item.key):
            self.learn(item)
            item.enter_window()
            window.add(item.entry)
            if self.topics.ledgers:
                self._became_ready(lane, [item.entry])
            self.bound_window(window)
        elif item.unindexed:
            self.index(item)
        elif item.order is not None:
            self.orders.leaves_memory(item)

    def _became_ready(self, lane: Lane[Item], entries: list[Entry[Item]]) -> None:
        topic, flow = lane.topic, lane.flow
        if topic.key not in self.topics.ledgers:
            return
        tenant, lanes = "", topic.lanes() if flow is None else list(islice(flow.merged(), _MERGED + 1))
        if flow is not None:
            tenant = flow.tenant.name
        if len(lanes) <= _MERGED:
            windows = [other.window for other in lanes if other.ready]
            self.topics.ledgers.became_ready(topic.key, tenant, windows, entries)

    def leave_ready(self, item: Item) -> None:
        """Note that the item may not be leased."""
        if item.order is not None and item.phase is not Phase.WINDOW and self.orders.comes(item.id) is None:
            return  # it is behind another one
        item.lane.remove_ready(item.deliver_after_ms)
        if item.phase is Phase.WINDOW:
            assert item.lane.window is not None
            item.lane.window.remove(item.entry)
            item.leave_window()
            if item.lane.flow is not None:  # its tenant may be skipped because of this item
                self.wake_lane(item.lane)

    def _window(self, lane: Lane[Item], new: int) -> Window[Item] | None:
        """Return the lane's window. A lane whose only ready items are the `new` ones gets a complete one."""
        self.woken[lane.topic.key] = None  # `wake_lane`, as each request that stores items comes here
        if lane.flow is not None:
            lane.flow.wake()
        if lane.window is None and lane.ready == new:
            self._new_window(lane, complete=True)
        return lane.window

    def _new_window(self, lane: Lane[Item], *, complete: bool) -> Window[Item]:
        window = lane.window = Window(complete=complete, page_rows=FIRST_PAGE_ROWS)
        self.residents.add(lane, self)
        return window

    def bound_window(self, window: Window[Item]) -> None:
        if len(window.entries) > self.config.window_rows:
            self.cut_window(window, self.config.window_rows)
        if not self.residents.full:
            return
        self.residents.relieve()  # this window may shrink, too
        rows = len(window.entries)
        while rows > 1 and self.residents.full:
            # Drop rows from the far end, but keep the first item: a waiting consumer needs it.
            rows -= max(1, rows // 8)
            self.cut_window(window, rows)

    def cut_window(self, window: Window[Item], keep: int) -> None:
        for gone in window.cut(keep):
            gone.leave_window()
            if gone.unindexed:
                self.index(gone)
                continue
            self.forget(gone)
            if gone.order is not None:
                self.drop_body(gone)
                self.orders.leaves_memory(gone)

    def open_window(self, lane: Lane[Item]) -> Window[Item]:
        window = lane.window
        return window if window is not None else self._new_window(lane, complete=lane.ready == 0)

    def drop_window(self, lane: Lane[Item]) -> None:
        """Forget the window's items; a page finds them again."""
        self.residents.discard(lane)
        window = lane.window
        if window is not None:
            if window.entries:
                self.cut_window(window, 0)
            window.generation += 1
            lane.window = None

    # ------------------------------------------------------------------------------------- known items

    def indexed(self, item: Item) -> None:
        """Note that the transaction is committed that writes the row of an unindexed item or removes the item."""
        item.unindexed = False
        if item.order is None:
            self.tail.left(item.bytes)

    def has_progress(self, change: Change) -> None:
        """Count the checkpoint that `change` has written. The body in memory, if there is one, has an older one."""
        item = change.item
        self.noted[item.id] += change.more_bytes
        item.bytes += change.more_bytes
        self.drop_body(item)

    def learn(self, item: Item) -> None:
        self.known[item.id] = item
        held = KNOWN_BYTES + (item.bytes if item.body is not None else 0)
        self.budget.take(held - item.held)
        item.held = held

    def forget(self, item: Item) -> None:
        """Forget an item that is in no window, not leased and has no change."""
        if self.known.pop(item.id, None) is not None:
            self.give(item)
        self.written.pop(item.id, None)

    def give(self, item: Item) -> None:
        self.budget.give(item.held)
        item.held = 0

    def drop_body(self, item: Item) -> None:
        """Drop the body of a delivered item: it is read again if the item becomes ready again."""
        item.body = None
        if item.held > KNOWN_BYTES:
            self.budget.give(item.held - KNOWN_BYTES)
            item.held = KNOWN_BYTES

    def body_changed(self, item: Item, body: NewItem | None) -> None:
        """Note that the database has another body, metadata or place: they are read before the next delivery."""
        if body is not None:
            item.priority, item.bytes = body.priority, body_bytes(body)
        self.drop_body(item)

    def got_body(self, item: Item, body: Body) -> None:
        item.set_body(body)
        self.learn(item)

    # ------------------------------------------------------------------------------------- ends of leases and changes

    def unlease(self, item: Item) -> None:
        """Take back a lease that was never written and whose item was not begun."""
        item.unlease()
        if item.given is not None and item.given.worker:
            self.unleased.append(item.given.worker)
        item.lane.leased -= 1
        if item.lane.slots is not None:
            item.lane.slots.ended(item.id)
        if item.lane.flow is not None:
            item.lane.flow.lease_over(item.id, 0)
        self.enter_ready(item)

    def remember_written(self, item: Item) -> None:
        """Keep a written lease in memory. Beyond the bound, or if memory is short, forget the oldest."""
        written = self.written
        written.pop(item.id, None)
        written[item.id] = item
        excess = max(len(written) - self.config.leases, 2 * self.residents.full)
        if excess > 0:
            for old in list(islice(written.values(), excess)):
                if not (old.busy or old.awaited):
                    self.forget(old)

    def settle_phase(self, item: Item) -> None:
        """Treat an item whose last change ended without effect as its row says."""
        if item.phase is Phase.LEASED:
            if item.place is Place.TIMER:
                self.remember_written(item)
        elif item.place is Place.READY:
            self.enter_ready(item)
        else:
            self.forget(item)
