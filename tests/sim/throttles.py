"""Promises 11 and 12, checked by what the hosts lease: the rates of throttle keys, and items that no throttle holds.

A lease counts when it is made, redeliveries too, unless its item was given back: it did not reach its consumer, or was
released. When a limit changes, tokens that hosts hold stay good; so the intervals judged are those between changes,
and tokens that were left before may be used in the next one. Buckets are empty when the hosts start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foqs.bounds import NANO
from foqs.engine.calls import DequeueCall
from foqs.engine.shard import Shard
from foqs.engine.throttling import Parked
from foqs.fairness.keys import LaneKey, TopicKey, tenancy_of, topic_key
from foqs.fairness.topics import Topic
from foqs.item import Item
from foqs.limits.bucket import TTL_MS
from foqs.limits.lease_slots import ShardSlots
from foqs.policies.entries import Throttle
from foqs.prefetch.lane import Lane
from tests.sim.records import broken, lane_of

if TYPE_CHECKING:
    from tests.sim.member import Member
    from tests.sim.simulation import Simulation

Key = tuple[str, str]
"""(namespace, throttle key)"""
Lease = tuple[int, int]
"""(item, lease)"""
_DRAIN_MS = 4_000
_IDLE_MS = 60
_DRAIN_SHARE = 1.2


@dataclass
class Limit:
    """A throttle in force since `since_ms`, when there were at most `room` tokens, in billionths. `leases` since
    then, with their times, in order."""

    throttle: Throttle
    since_ms: int
    room: int
    leases: dict[Lease, int] = field(default_factory=dict)

    def left(self, key: Key, now_ms: int) -> int:
        """Return how many tokens hosts may have now, after a look at each interval until now."""
        quota, room, last_ms = self.throttle.quota, self.room, self.since_ms
        assert quota is not None
        nano_per_ms = quota.nano_per_ms
        assert nano_per_ms is not None
        for at_ms in (*self.leases.values(), now_ms):
            room = max(room, min(quota.burst * NANO, room + nano_per_ms * (at_ms - last_ms)))
            last_ms = at_ms
            if room < NANO and at_ms != now_ms:
                broken(11, f"{len(self.leases)} leases with {key} are more than {self.throttle} allows at {at_ms} ms")
            room -= NANO
        return room + NANO


class Throttles:
    """Of all hosts: they know each change of the settings at the same time."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._limits: dict[Key, Limit] = {}
        self._room: dict[Key, int] = {}  # of keys without a limit
        self._leases: dict[Lease, list[Key]] = {}
        self._free: dict[LaneKey, bool] = {}
        self._idle: dict[Parked, tuple[tuple[Any, ...], int]] = {}

    def changed(self) -> None:
        """Other settings are in force from now on."""
        self.check()
        self._free.clear()
        profile = self._sim.profile
        lanes = [lane for topic in profile.topics for lane in profile.lanes(topic)] if profile.throttled else ()
        for key in {**self._limits, **{key: None for lane in lanes for key in self._keys(lane)}}:
            self._follow(key)

    def check(self) -> None:
        """Judge every interval until now."""
        for key, limit in self._limits.items():
            limit.left(key, self._sim.time)

    # ------------------------------------------------------------------------------------- promise 11

    def leased(self, calls: list[DequeueCall]) -> None:
        for call in calls:
            for _, item, lease in call.found:
                keys = [key for key in self._keys(item.lane.key) if self._paces(key)]
                self._leases[item.id, lease] = keys
                for key in keys:
                    self._follow(key).leases[item.id, lease] = self._sim.time
                    self._sim.ledger.checks["throttled"] += 1

    def returned(self, item_id: int, lease: int) -> None:
        """The item did not reach its consumer, or is released."""
        for key in self._leases.pop((item_id, lease), ()):
            limit = self._limits.get(key)
            if limit is None:
                self._room[key] += NANO
            elif limit.leases.pop((item_id, lease), None) is None:
                limit.room += NANO
            self._sim.ledger.checks["given back"] += 1

    def _follow(self, key: Key) -> Limit:
        limit, throttle = self._limits.get(key), self._throttle(key)
        if throttle is not None and throttle.per_second is None:
            throttle = None
        if limit is not None and limit.throttle == throttle:
            return limit
        if limit is not None:
            self._room[key] = limit.left(key, self._sim.time)
            del self._limits[key]
        if throttle is not None:
            # Buckets are empty when the hosts start. Later one may be full before any host knows its key.
            room = max(self._room.get(key, 0), throttle.burst * NANO) if self._sim.versions > 1 else 0
            if throttle.shadow:
                self._room[key] = max(room, throttle.burst * NANO)
            else:
                self._limits[key] = Limit(throttle, self._sim.time, room)
        return self._limits.get(key)  # type: ignore[return-value]

    def _throttle(self, key: Key) -> Throttle | None:
        return self._sim.ledger.attempts.policies.namespace(key[0]).throttle(key[1])

    def _holds(self, key: Key) -> bool:
        throttle = self._throttle(key)
        return throttle is not None and not throttle.shadow

    def _paces(self, key: Key) -> bool:
        throttle = self._throttle(key)
        return throttle is not None and throttle.per_second is not None and not throttle.shadow

    def _keys(self, lane: LaneKey) -> list[Key]:
        topic = topic_key(lane)
        added = self._sim.ledger.attempts.policies.of(topic).throttles
        return [(topic[0], name) for name in {**dict.fromkeys(tenancy_of(lane)[1]), **dict.fromkeys(added)}]

    # ------------------------------------------------------------------------------------- promise 12

    def free(self, lane: LaneKey) -> bool:
        """Whether no throttle holds the items of the lane."""
        if lane not in self._free:
            self._free[lane] = not any(map(self._holds, self._keys(lane)))
        return self._free[lane]

    def before(self, member: Member, keys: list[TopicKey], eligible: list[Shard]) -> set[TopicKey]:
        """Return which topics have all in memory that can be delivered now."""
        host = member.engine
        self.look(member)
        if host.state.slices.long_work:
            return set()
        return {key for key in keys if (topic := host.state.topics.get(key)) is not None and _whole(topic, eligible)}

    def after(self, member: Member, call: DequeueCall, wants: Any, whole: set[TopicKey]) -> None:
        """A dequeue does not return with less than it wants while it leaves an item that no throttle holds."""
        given = Counter(item.lane.topic.key for _, item, _ in call.found)
        for key, count in wants:
            if key not in whole or given[key] >= count or call.max_bytes < 1 << 20:
                continue
            self._sim.ledger.checks["short"] += 1
            topic = member.engine.state.topics.get(key)
            for lane in topic.lanes() if topic is not None else ():
                if self.free(lane.key) and lane.window is not None and lane.term.shard is not None:
                    left = [entry[3] for entry in lane.window.entries if _lasts(entry[3], member.now_ms)]
                    if left:
                        broken(12, f"{key}: {left[0]} is left, and {given[key]} of {count} items were delivered")

    def look(self, member: Member) -> None:
        """Where nothing fails, no flow stays parked while each of its keys has a token and a consumer waits, beside the
        token of a keeper. (It may be claimed for a flow of another topic, which had a consumer just before.)"""
        host, found = member.engine, {}
        at_ms = host.state.throttling.monotonic_ms()
        for topic, waiting in (
            host.state.waiting.items() if self._sim.profile.prompt and not host.state.slices.long_work else ()
        ):
            for flow in _parked(host.state.topics.get(topic)):
                if isinstance(flow.parked, ShardSlots):
                    continue
                keys = flow.rules.keys
                kept = [other for key in keys for other in key._awake if other.lanes]
                if any(other.lanes[0].topic.key not in host.state.waiting for other in kept):
                    continue
                if all(key.allowance.good(at_ms) > key.kept for key in keys):
                    self._sim.ledger.checks["idle tokens"] += 1
                    state = (self._sim.versions, waiting[0], *[key.used_ms for key in keys])
                    before = self._idle.get(flow, (state, at_ms))
                    found[flow] = before if before[0] == state else (state, at_ms)
                    if at_ms - found[flow][1] > _IDLE_MS:
                        broken(12, f"{flow} stays parked for {at_ms - found[flow][1]} ms, and {keys} have tokens")
        self._idle = found

    def drain_ms(self) -> int:
        """Return the time within which all that is stored is delivered."""
        stored: Counter[Key] = Counter()
        for db in self._sim.dbs.values():
            for body in db.items.values():
                stored.update(key for key in self._keys(lane_of(db.lanes[body.lane])) if self._paces(key))
        need_ms = 0
        for key, items in stored.items():
            throttle = self._throttle(key)
            assert throttle is not None and throttle.per_second is not None
            need_ms = max(need_ms, int(1_000 * items / throttle.per_second))
        return int(_DRAIN_MS + TTL_MS + _DRAIN_SHARE * need_ms)


def _lasts(item: Item, now_ms: int) -> bool:
    attempts = item.lane.topic.bounds.attempts if item.lane.topic.bounds is not None else 0
    return item.body is not None and not 0 < item.expires_at_ms <= now_ms and item.attempt < attempts


def _parked(topic: Topic[Lane[Item]] | None) -> list[Parked]:
    if topic is None or topic.turns is None:
        return []
    flows = [flow for tenant in topic.turns.tenants.values() for flow in tenant.flows.values()]
    return [flow for flow in flows if flow.parked is not None and flow.ready]


def _whole(topic: Topic[Lane[Item]], eligible: list[Shard]) -> bool:
    if topic.turns is None:
        return False
    for tenant in topic.turns.tenants.values():
        for lane in [lane for flow in tenant.unparked for lane in flow.lanes if lane.ready]:
            window = lane.window
            if lane.term.shard not in eligible or window is None or window.more:
                return False
            if len(window.entries) < lane.ready or any(entry[3].body is None for entry in window.entries):
                return False
    return True
