"""A dequeue of a topic whose tenants take turns: each turn takes the tenant's first item in lane order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from foqs.engine import ready_lanes, tenants
from foqs.engine.calls import DequeueCall
from foqs.engine.concurrency import AnyGate
from foqs.engine.state import State
from foqs.fairness import turns
from foqs.fairness.tenants import IDLE, PARKED, Flow, Tenant
from foqs.fairness.topics import Topic
from foqs.fairness.turns import ITEMS, Turns
from foqs.item import Item
from foqs.prefetch.lane import Entry, Lane, first_of, lease_until
from foqs.rows import Key as OrderKey
from foqs.rules import MOST_RULES_BYTES

_CHUNK = 8
"""Items of a tenant that are merged after the first one. Each further merge doubles the number, so that tenants with
one turn cost no full merge."""
_PASSED = 64
"""Tenants that a dequeue passes over because a late lane may have their next item."""
_AHEAD = 128
"""A dequeue that lacks a page asks for the pages of this number of tenants at least. After this many items, a dequeue
prefetches pages for twice that number of tenants, so that consumers do not wait for each read. If pages are still
lacking, both numbers double."""
_MOST_AHEAD = 512
_IDLE = 1_000
"""Tenants without an item, and flows without tokens, that a dequeue finds before it leaves the rest to the next slice
of the event loop."""
_SEVERAL = 8
"""Fewer items are not picked together: that is not worth it."""

_Tenant = Tenant[Lane[Item]]
_NOT_NEEDED: ready_lanes.AtHand = ((), (), ())
_NONE: list[Entry[Item]] = []


class TenantCursor:
    """The place of a dequeue in one tenant's items: entries before `at` are taken, entries before `upto` are next.

    `entries` come from the window of `lane`. If that is None, they are the first of several `lanes`: `paged` lanes
    have more rows behind their window, and lanes of `parked` flows give no more."""

    __slots__ = ("at", "entries", "lane", "lanes", "paged", "parked", "size", "upto")

    def __init__(self) -> None:
        self.lane: Lane[Item] | None = None
        self.lanes: Sequence[Lane[Item]] = ()
        self.paged: Sequence[ready_lanes.Source] = ()
        self.entries: list[Entry[Item]] = _NONE
        self.parked: set[Flow[Lane[Item]]] | None = None
        self.at = self.upto = 0
        self.size = 1

    def finish(self, state: State) -> None:
        """Take the taken entries out of the windows, ask for what the windows lack, and empty the cursor."""
        at, entries, lane = self.at, self.entries, self.lane
        if lane is not None:
            if at:
                lane.lease(entries[:at])
                del entries[:at]
            window = lane.window
            if window is not None and window.more:
                ready_lanes.ask_pages(state, ((lane.term.shard, lane, window),))
        else:
            lanes, parked = self.lanes, self.parked
            if at and parked is not None:
                lanes = [lane for lane in lanes if lane.flow not in parked]
            if at:
                lease_until(lanes, entries[at - 1])
            if self.paged:
                ready_lanes.ask_pages(state, self.paged)
        self.entries, self.at, self.upto = _NONE, 0, 0


class TenantDequeue:
    """The turns of one dequeue, or of several calls that waited. `lacks`: after it some ready items are left that are
    not in memory yet. `asks`: some wait for a coordinator's answer. `commits`: some leases are committed before their
    delivery. `full`: the next item was too large for the bytes left, which are `left_bytes` after a `pick`."""

    def __init__(self, state: State, topic: Topic[Lane[Item]], able: ready_lanes.Able, now_ms: int) -> None:
        assert topic.turns is not None, "the topic's tenants take turns"
        self.lacks = self.asks = self.full = self.commits = False
        self.left_bytes = self._bodies_bytes = 0
        self._state = state
        self._topic = topic
        self._turns: Turns[Lane[Item]] = topic.turns
        topic.turns.used_ms = now_ms
        self._able = able
        self.now_ms = now_ms
        self._cursors: dict[_Tenant, TenantCursor] = {}
        self._skipping = topic.key in state.skipping
        self._passed = self._lacked = self._nothing = self._picked = 0
        self._stop = self._paused = bool(state.policies.pausing) and state.policies.paused(topic.key)
        self._ahead = _AHEAD
        self._changes = state.policies.changes
        bounds = ready_lanes.bounds_of(state, topic)
        self._attempts = bounds.attempts
        self._throttled = bool(bounds.throttles)
        if self._turns.unweighed:
            tenants.catch_up(state, topic)
        tenants.retry_skipped(self._turns, now_ms)

    def pick(self, call: DequeueCall, count: int, room_bytes: int) -> list[Entry[Item]]:
        """Take up to `count` items that fit out of the windows, and charge their tenants."""
        self.full, self.left_bytes, self._bodies_bytes = False, room_bytes, call.bodies_bytes
        self._ahead = max(self._ahead, 2 * count)
        picked: list[Entry[Item]] = []
        if count >= _SEVERAL and not (self._cursors or self._stop):
            picked, size, answer_bytes = self._several(call, count, room_bytes)
            self.left_bytes -= answer_bytes
            self._bodies_bytes -= size
        if len(picked) < count and not self._stop:
            picked += self._one_by_one(call, count - len(picked), some=bool(picked or call.found))
        self._picked += len(picked)
        return picked

    def _one_by_one(self, call: DequeueCall, count: int, *, some: bool) -> list[Entry[Item]]:
        """Pick items one after the other. `some`: the call has items, so that the next one has to fit."""
        topic_turns, overhead_bytes = self._turns, call.item_overhead_bytes
        if self._topic.rules is not None:
            overhead_bytes += MOST_RULES_BYTES
        heads = not (topic_turns.ranked or self._throttled)
        picked: list[Entry[Item]] = []
        while len(picked) < count and not (self._stop or self.full):
            if heads:
                self._heads(picked, count, overhead_bytes)
                if len(picked) == count:
                    break
            tenant = topic_turns.first()
            if tenant is None:
                break
            some = some or bool(picked)
            entry = self._next(tenant, count - len(picked), self.left_bytes - overhead_bytes, some=some)
            if entry is not None:
                item = entry[3]
                flow: Any = item.lane.flow
                self.left_bytes -= item.bytes + overhead_bytes + flow.names_bytes
                self._bodies_bytes -= item.bytes
                picked.append(entry)
                topic_turns.charge(tenant, topic_turns.cost(tenant, item.id, item.bytes))
                self._leave_if_last(tenant)
        return picked

    def _leave_if_last(self, tenant: _Tenant) -> None:
        """Let the tenant leave if the last entry of its cursor was its last item."""
        cursor = self._cursors[tenant]
        if cursor.at == cursor.upto:
            taken = [entry for entry in cursor.entries[: cursor.at] if entry[3].lane.flow in tenant.unparked]
            if len(taken) == sum([flow.ready for flow in tenant.unparked]):
                self._turns.leave(tenant, self._without_items(tenant))

    def _without_items(self, tenant: _Tenant) -> int:
        """Return the state of a tenant that has no item to give."""
        return PARKED if len(tenant.flows) > len(tenant.unparked) else IDLE

    def _heads(self, picked: list[Entry[Item]], count: int, overhead_bytes: int) -> None:
        """Pick next items out of windows, until there are `count` or a turn needs more than that: a tenant has several
        flows, throttle keys, no item, or items that are not in memory, or the item does not fit. A tenant leaves with
        its last item."""
        topic_turns, able, changes, cursors = self._turns, self._able, self._changes, self._cursors
        first, charge, counts_items = topic_turns.first, topic_turns.charge, topic_turns.unit == ITEMS
        now_ms, attempts = self.now_ms, self._attempts
        room_bytes, bodies_bytes = self.left_bytes - overhead_bytes, self._bodies_bytes
        while len(picked) < count:
            tenant = first()
            if tenant is None or tenant in cursors or tenant.changes != changes:
                break
            flow = tenant.only
            if flow is None or flow.throttles or flow.parked is not None:
                break
            head: Entry[Item] | None = None
            ready = 0
            for lane in flow.lanes:
                if not lane.ready:
                    continue
                window, shard = lane.window, lane.term.shard
                if window is None or window.more or not window.entries or shard is None:
                    break
                if shard not in able:
                    able[shard] = ready_lanes.leases(shard, now_ms)
                entry = window.entries[0]
                if not able[shard] or entry[3].body is None:
                    break
                window.used_ms = now_ms
                ready += lane.ready
                if head is None or entry < head:
                    head = entry
            else:
                if head is None:
                    break
                item = head[3]
                size = item.bytes
                fits = size + flow.names_bytes <= room_bytes and size <= bodies_bytes
                if fits and item.attempt < attempts and not 0 < item.expires_at_ms <= now_ms:
                    item.lane.lease_first()
                    room_bytes -= size + overhead_bytes + flow.names_bytes
                    bodies_bytes -= size
                    picked.append(head)
                    charge(tenant, 1 if counts_items else topic_turns.cost(tenant, item.id, size), last=ready == 1)
                    continue
            break
        self.left_bytes, self._bodies_bytes = room_bytes + overhead_bytes, bodies_bytes

    def _next(self, tenant: _Tenant, wanted: int, room_bytes: int, *, some: bool) -> Entry[Item] | None:
        """Take the tenant's next item. None if this turn gives no item; then another tenant may be the first."""
        cursor = self._cursors.get(tenant)
        if cursor is None or cursor.at == cursor.upto:
            cursor = self._open(tenant, cursor)
            if cursor is None:
                return None
        entry = cursor.entries[cursor.at]
        item = entry[3]
        if self._turns.ranked and entry[0] != tenant.level.rank:
            self._turns.place(tenant, entry[0])
            return None
        if item.body is None or (
            (0 < item.expires_at_ms <= self.now_ms or item.attempt >= self._attempts)
            and ready_lanes.drop(self._state, [item], self.now_ms)
        ):
            cursor.finish(self._state)
            return None
        flow: Any = item.lane.flow
        if some and (item.bytes + flow.names_bytes > room_bytes or item.bytes > self._bodies_bytes):
            self.full = True
            return None
        if self._throttled or flow.throttles:
            gate = self._state.throttling.take(flow, item)
            if gate is not None:
                self._park(cursor, flow, gate, wanted)
                return None
            slots = item.lane.slots
            self.commits = self.commits or (slots is not None and slots.commits)
        cursor.at += 1
        return entry

    def _several(self, call: DequeueCall, count: int, room_bytes: int) -> tuple[list[Entry[Item]], int, int]:
        """Pick up to `count` items together, where no item needs a decision of its own: few tenants take turns, the
        items are in memory and fit, and there are tokens for all. Else pick nothing. Return the items, the bytes of
        their bodies, and what they take in the answer."""
        queue = self._turns.alike(count // 2)
        if queue is None:
            return [], 0, 0
        stale = [tenant for _, _, tenant in queue if tenant.changes != self._changes]
        if [tenant for tenant in stale if self._weigh(tenant)]:
            queue = self._turns.alike(count // 2)
            if queue is None:
                return [], 0, 0
        own: list[list[Entry[Item]]] = []
        places: list[ready_lanes.AtHand] = []
        shares = turns.shares(queue, count)
        throttled = self._throttled or bool([tenant for _, _, tenant in queue if tenant.only and tenant.only.throttles])
        if throttled and not self._enough(queue, shares):
            return [], 0, 0
        for (_, _, tenant), most in zip(queue, shares, strict=True):
            found = ready_lanes.at_hand(self._able, tenant.only, self.now_ms) if most else _NOT_NEEDED
            if found is None:
                return [], 0, 0
            places.append(found)
            own.append(first_of(found[1], most, ready_lanes.bound_of(found[2], ()) if found[2] else None))
        picked, given = turns.next_turns(queue, own, count)
        if not picked:
            return [], 0, 0
        items, now_ms, attempts = [entry[3] for entry in picked], self.now_ms, self._attempts
        over = [item for item in items if 0 < item.expires_at_ms <= now_ms or item.attempt >= attempts]
        if over or [item for item in items if item.body is None]:
            return [], 0, 0
        size = sum([item.bytes for item in items])
        names_bytes = sum([one.items * one.tenant.only.names_bytes for one in given if one.tenant.only])
        rules_bytes = 0 if self._topic.rules is None else MOST_RULES_BYTES
        answer_bytes = size + names_bytes + len(items) * (call.item_overhead_bytes + rules_bytes)
        if answer_bytes > room_bytes or size > call.bodies_bytes:
            return [], 0, 0
        if throttled:
            self._state.throttling.spend([(one.tenant.only, one.items) for one in given if one.tenant.only])
        self._take(given, places, own)
        return picked, size, answer_bytes

    def _enough(self, queue: turns.Queue, shares: Sequence[int]) -> bool:
        """Return True if there are tokens for these numbers of items of the tenants."""
        flows = [tenant.only for _, _, tenant in queue if tenant.only is not None]
        wanted = [(flow, min(most, flow.ready)) for flow, most in zip(flows, shares, strict=False)]
        return len(flows) == len(queue) and self._state.throttling.enough(wanted)

    def _take(
        self, given: Sequence[turns.Given], places: Sequence[ready_lanes.AtHand], own: Sequence[list[Entry[Item]]]
    ) -> None:
        """Take the items out of the windows, and charge their tenants."""
        empty: list[_Tenant] = []
        for one, (lanes, _, paged), entries in zip(given, places, own, strict=True):
            if one.items:
                lease_until(lanes, entries[one.items - 1])
                ready_lanes.ask_pages(self._state, paged)
                if not sum([lane.ready for lane in lanes]):
                    empty.append(one.tenant)
        self._turns.charge_all(given)
        for tenant in empty:
            self._turns.leave(tenant, IDLE)

    def _open(self, tenant: _Tenant, cursor: TenantCursor | None) -> TenantCursor | None:
        """Merge the tenant's next items. None if it has none that can be leased now: it takes no more turns."""
        if cursor is None:
            if tenant.changes != self._changes and self._weigh(tenant):
                return None  # another tenant may be the first
            cursor = self._cursors[tenant] = TenantCursor()
        elif cursor.upto:
            cursor.finish(self._state)
            cursor.size = max(_CHUNK, 2 * cursor.size)
        if self._first_lane(tenant, cursor):
            return cursor
        lanes, windows, paged, lacking, down = self._sources(tenant)
        if lacking:
            self._lacked += 1
            ready_lanes.ask_pages(self._state, lacking)
        if not windows:
            self._put_away(tenant, lacking=bool(lacking), down=down)
            return None
        if (lacking or down) and self._turns.ranked:
            self._turns.incomplete[tenant] = None
        bound: OrderKey | None = None
        if paged or lacking:
            bound = ready_lanes.bound_of(paged, () if self._skipping else lacking)
        entries = first_of(windows, cursor.size, bound)
        if not entries:
            ready_lanes.ask_pages(self._state, paged)
            self._pass(tenant)
            return None
        cursor.lane, cursor.lanes, cursor.paged, cursor.parked = None, lanes, paged, None
        cursor.entries, cursor.upto = entries, len(entries)
        return cursor

    def _first_lane(self, tenant: _Tenant, cursor: TenantCursor) -> bool:
        """Open the cursor if no lists and no merge are needed: one lane has all of the tenant's items, or its next item
        alone is taken, and every lane has its first item. Return True if so."""
        able, first, found, lanes = self._able, None, None, 0
        for flow in tenant.unparked:
            for lane in flow.lanes:
                if not lane.ready:
                    continue
                window = lane.window
                lanes += 1
                if window is None or not window.entries or not able.get(lane.term.shard):
                    return False
                entry = window.entries[0]
                if entry[3].body is None or (lanes > 1 and cursor.size > 1):
                    return False
                window.used_ms = self.now_ms
                if first is None or entry < first:
                    first, found = entry, lane
        if found is None:
            return False
        cursor.lane = found
        cursor.entries = found.window.entries  # type: ignore[union-attr]
        cursor.upto = len(cursor.entries) if lanes == 1 else 1
        return True

    def _sources(self, tenant: _Tenant) -> ready_lanes.Sources:
        """Return the sources of the tenant's flows that are not parked."""
        lanes = chain.from_iterable([flow.lanes for flow in tenant.unparked])
        return ready_lanes.sources(self._state, self._able, self._topic.key, lanes, self.now_ms)

    def _put_away(self, tenant: _Tenant, *, lacking: bool, down: bool) -> None:
        """Skip a tenant of which no item can be leased now."""
        if lacking and self._turns.ranked and not self._skipping:
            self._pass(tenant)  # its items may be the most urgent
        elif lacking or down:
            self._turns.skip(tenant, self.now_ms, down=not lacking)
            self._stop = self._lacked >= self._ahead
        else:
            self._turns.leave(tenant, self._without_items(tenant))
            self._found_none()

    def _found_none(self) -> None:
        """Count a tenant or a flow that had nothing to give. After many of them, leave the rest to the next slice."""
        self._nothing += 1
        if self._nothing == _IDLE:
            self._stop = self.lacks = True
            self._state.due[self._topic.key] = None
            self._state.wake()

    def _pass(self, tenant: _Tenant) -> None:
        """Pass over a tenant whose next item may be in a lacking lane. Where urgent items go first, end the dequeue."""
        self._turns.pass_over(tenant)
        self._passed += 1
        if self._turns.ranked or self._passed == _PASSED:
            self._stop = True

    def _park(self, cursor: TenantCursor, flow: Flow[Lane[Item]], gate: AnyGate, wanted: int) -> None:
        """Let the flow of the next entry wait at `gate`. Other entries of the tenant stay."""
        if cursor.lane is not None:
            cursor.finish(self._state)
        else:
            at, entries = cursor.at, cursor.entries
            if at:  # not from a lane of the flow that took no part in the merge
                lease_until([lane for lane in cursor.lanes if lane.flow is flow], entries[at - 1])
            cursor.entries = [*entries[:at], *[entry for entry in entries[at:] if entry[3].lane.flow is not flow]]
            cursor.upto = len(cursor.entries)
            cursor.parked = cursor.parked or set()
            cursor.parked.add(flow)
        self.asks = self._state.throttling.park(flow, gate, wanted) or self.asks
        self._found_none()

    def _weigh(self, tenant: _Tenant) -> bool:
        """Return True if the tenant has another place in the queue."""
        return tenants.weigh(self._state, self._topic, tenant)

    def end(self, *, found: bool) -> None:
        """Take the picked entries out of the windows, and ask for what the next dequeue will need."""
        for cursor in self._cursors.values():
            if cursor.upto:
                cursor.finish(self._state)
        state, topic_turns = self._state, self._turns
        if self._passed:
            topic_turns.back()
        if topic_turns.ahead is not None:
            topic_turns.ahead -= self._picked
        if self._lacked or (topic_turns.ahead is not None and topic_turns.ahead <= 0):
            self._read_ahead()
        if not self._paused:
            self.lacks = self.lacks or bool(self._passed or topic_turns.skipped)
        if self.lacks or state.held_up or state.skipping:
            lacking = bool(self._passed or (self.lacks and not found))
            ready_lanes.wait_for_lacking(
                state, self._topic.key, lacking, self.now_ms, found=found, held=bool(self._passed)
            )

    def _read_ahead(self) -> None:
        """Ask for pages of the next tenants: some page was missing, so they probably need theirs, too."""
        topic_turns, lacked = self._turns, bool(self._lacked)
        reach = max(self._ahead, topic_turns.reach)
        if lacked and topic_turns.ahead is not None:
            reach = min(2 * reach, max(self._ahead, _MOST_AHEAD))
        for tenant in topic_turns.next_up(reach if lacked else 2 * reach):
            if tenant not in self._cursors and (lacking := self._sources(tenant)[3]):
                ready_lanes.ask_pages(self._state, lacking)
                lacked = True
        topic_turns.ahead, topic_turns.reach = (reach, reach) if lacked else (None, 0)
